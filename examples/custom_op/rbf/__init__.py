"""Radial basis functions (Broomhead and Lowe 1988): y_k = exp(-gamma |x - c_k|^2) of a vector x {d} and the columns of
c {d,k}, as an op in Python (`rbf.in_python.rbf`) and as a compiled one (`rbf.compiled.rbf`)."""
