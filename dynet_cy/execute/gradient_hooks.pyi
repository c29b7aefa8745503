# Used from Cython only.
