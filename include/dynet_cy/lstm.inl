/* SPDX-License-Identifier: Apache-2.0
 *
 * The point-wise parts of an LSTM cell: gates i, f, o, g; c = f c' + i g; h = o tanh(c). */

static void DY_N(lstm_gates)(size_t h, size_t cols, const float *pre, float forget_bias, float *gates) {
    size_t n = h;
    for (size_t c = 0; c < cols; c++, pre += 4 * h, gates += 4 * h) {
        DY_N(unary_fwd_logistic)(h, pre, 0, 0, gates);
        DY_EACH(S(gates + h, LOGISTIC(L(pre + h) + C(forget_bias))););
        DY_N(unary_fwd_logistic)(h, pre + 2 * h, 0, 0, gates + 2 * h);
        DY_N(unary_fwd_tanh)(h, pre + 3 * h, 0, 0, gates + 3 * h);
    }
}

static void DY_N(lstm_gates_bwd)(size_t h, size_t cols, const float *gates, const float *dgates, float *dpre, int acc) {
    for (size_t c = 0; c < cols; c++, gates += 4 * h, dgates += 4 * h, dpre += 4 * h) {
        DY_N(unary_bwd_logistic)(3 * h, gates, gates, dgates, 0, 0, dpre, acc);
        DY_N(unary_bwd_tanh)(h, gates + 3 * h, gates + 3 * h, dgates + 3 * h, 0, 0, dpre + 3 * h, acc);
    }
}

static void DY_N(lstm_c)(size_t n, size_t cols, const float *c_prev, const float *gates, float *out) {
    for (size_t c = 0; c < cols; c++, c_prev += n, gates += 4 * n, out += n)
        DY_EACH(S(out, L(gates + n) * L(c_prev) + L(gates) * L(gates + 3 * n)););
}

static void DY_N(lstm_c_bwd)(size_t n, size_t cols, const float *c_prev, const float *gates, const float *dc, float *dc_prev,
                             int acc_c, float *dgates, int acc_gates) {
    for (size_t c = 0; c < cols; c++, c_prev += n, gates += 4 * n, dc += n) {
        if (dc_prev) {
            DY_EACH(DY_GRADIENT(dc_prev, acc_c, L(dc) * L(gates + n)););
            dc_prev += n;
        }
        if (dgates) {
            DY_EACH(
                vf d = L(dc);
                DY_GRADIENT(dgates, acc_gates, d * L(gates + 3 * n));
                DY_GRADIENT(dgates + n, acc_gates, d * L(c_prev));
                if (!acc_gates) S(dgates + 2 * n, C(0.f));
                DY_GRADIENT(dgates + 3 * n, acc_gates, d * L(gates));
            );
            dgates += 4 * n;
        }
    }
}

static void DY_N(lstm_h)(size_t n, size_t cols, const float *gates, const float *c_now, float *y) {
    for (size_t c = 0; c < cols; c++, gates += 4 * n, c_now += n, y += n)
        DY_EACH(S(y, L(gates + 2 * n) * TANH(L(c_now))););
}

static void DY_N(lstm_h_bwd)(size_t n, size_t cols, const float *gates, const float *c_now, const float *dy, float *dgates,
                             int acc_gates, float *dc, int acc_c) {
    for (size_t c = 0; c < cols; c++, gates += 4 * n, c_now += n, dy += n) {
        DY_EACH(
            vf d = L(dy);
            vf t = TANH(L(c_now));
            if (dgates) DY_GRADIENT(dgates + 2 * n, acc_gates, d * t);
            if (dc) DY_GRADIENT(dc, acc_c, d * L(gates + 2 * n) * (C(1.f) - t * t));
        );
        if (dgates) {
            if (!acc_gates) {
                DY_N(fill)(2 * n, 0, dgates);
                DY_N(fill)(n, 0, dgates + 3 * n);
            }
            dgates += 4 * n;
        }
        if (dc) dc += n;
    }
}
