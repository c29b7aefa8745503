"""The kernels in CUDA of both forms of the op."""

KERNELS = """
__global__ void forward(In x, In c, Out y, float gamma) {
    for (EACH(k, y.size * y.batch)) {
        size_t i = k % y.size, b = k / y.size;
        float apart = 0;
        for (int j = 0; j < x.shape[0]; j++) {
            float d = x(j, b) - c(j, i, b);
            apart += d * d;
        }
        y(i, b) = expf(-gamma * apart);
    }
}

__global__ void backward(In dy, In y, In x, In c, Out dx, Out dc, float gamma) {
    for (EACH(k, x.size * x.batch)) {
        size_t j = k % x.size, b = k / x.size;
        float total = 0;
        for (int i = 0; i < y.shape[0]; i++) {
            float slope = -2 * gamma * dy(i, b) * y(i, b) * (x(j, b) - c(j, i, b));
            total += slope;
            dc(j, i, b) = -slope;
        }
        dx(j, b) = total;
    }
}
"""
