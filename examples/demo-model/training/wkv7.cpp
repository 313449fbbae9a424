// The WKV-7 recurrence and its gradient, for training on a CPU.
//
// For each head, with the state S [value][key] and S = 0 at the start of a sequence:
//
//     sa = S a                                  a is minus the normalised key
//     S  = S diag(w) + sa b^T + v k^T           b is the normalised key times the in-context learning rate
//     y  = S r
//
// Source: RWKV-7 "Goose" (arXiv 2503.14456). Tensors are [batch, time, head, 64], f32, contiguous.
//
// The gradient needs every state. Kept for a whole batch they are more than memory can be read fast: so every CHUNK-th
// state is kept, and the backward pass computes the others again, a chunk at a time, in memory that fits in L2.

#include <torch/extension.h>

#include <cstring>
#include <vector>

namespace {

constexpr int N = 64;
constexpr int CHUNK = 16;
constexpr int STATE = N * N;

struct Inputs {
    const float *r, *w, *k, *v, *a, *b;
};

const float* data(const torch::Tensor& tensor, const torch::Tensor& like) {
    TORCH_CHECK(tensor.is_contiguous() && tensor.scalar_type() == torch::kFloat, "f32 and contiguous, please");
    TORCH_CHECK(tensor.dim() == 4 && tensor.size(3) == N && tensor.sizes() == like.sizes(), "[batch, time, head, 64], please");
    return tensor.data_ptr<float>();
}

// One step: `from` and `to` may be the same state.
inline void step(const Inputs& x, size_t at, const float* from, float* to, float* sa) {
    const float *w = x.w + at, *k = x.k + at, *a = x.a + at, *b = x.b + at;
    for (int i = 0; i < N; i++) {
        const float* s = from + i * N;
        float* t = to + i * N;
        float removed = 0, v = x.v[at + i];
        for (int j = 0; j < N; j++) removed += s[j] * a[j];
        for (int j = 0; j < N; j++) t[j] = s[j] * w[j] + removed * b[j] + v * k[j];
        sa[i] = removed;
    }
}

// y [batch, time, head, 64], and the states at the starts of chunks [batch * head, chunks, 64, 64].
std::vector<torch::Tensor> forward(torch::Tensor r, torch::Tensor w, torch::Tensor k, torch::Tensor v, torch::Tensor a,
                                   torch::Tensor b) {
    const int64_t B = r.size(0), T = r.size(1), H = r.size(2), chunks = (T + CHUNK - 1) / CHUNK;
    Inputs x{data(r, r), data(w, r), data(k, r), data(v, r), data(a, r), data(b, r)};
    auto y = torch::empty_like(r);
    auto kept = torch::empty({B * H, chunks, N, N}, r.options());
    float *py = y.data_ptr<float>(), *pkept = kept.data_ptr<float>();

#pragma omp parallel for
    for (int64_t head = 0; head < B * H; head++) {
        alignas(64) float state[STATE] = {0}, sa[N];
        for (int64_t t = 0; t < T; t++) {
            if (t % CHUNK == 0) memcpy(pkept + (head * chunks + t / CHUNK) * STATE, state, sizeof state);
            size_t at = (((head / H) * T + t) * H + head % H) * N;
            step(x, at, state, state, sa);
            for (int i = 0; i < N; i++) {
                float sum = 0;
                for (int j = 0; j < N; j++) sum += state[i * N + j] * x.r[at + j];
                py[at + i] = sum;
            }
        }
    }
    return {y, kept};
}

// The gradients of r, w, k, v, a, b.
std::vector<torch::Tensor> backward(torch::Tensor dy, torch::Tensor kept, torch::Tensor r, torch::Tensor w, torch::Tensor k,
                                    torch::Tensor v, torch::Tensor a, torch::Tensor b) {
    const int64_t B = r.size(0), T = r.size(1), H = r.size(2), chunks = kept.size(1);
    Inputs x{data(r, r), data(w, r), data(k, r), data(v, r), data(a, r), data(b, r)};
    const float *pdy = data(dy, r), *pkept = kept.data_ptr<float>();
    std::vector<torch::Tensor> gradients;
    float* out[6];
    for (auto& pointer : out) {
        gradients.push_back(torch::empty_like(r));
        pointer = gradients.back().data_ptr<float>();
    }

#pragma omp parallel
    {
        std::vector<float> states((CHUNK + 1) * STATE), removed(CHUNK * N), ds(STATE);
#pragma omp for
        for (int64_t head = 0; head < B * H; head++) {
            auto at = [&](int64_t t) -> size_t { return (((head / H) * T + t) * H + head % H) * N; };
            std::fill(ds.begin(), ds.end(), 0.f);
            for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
                int64_t start = chunk * CHUNK, end = std::min(start + CHUNK, T);
                memcpy(states.data(), pkept + (head * chunks + chunk) * STATE, STATE * sizeof(float));
                for (int64_t t = start; t < end; t++) {
                    float* state = &states[(t - start) * STATE];
                    step(x, at(t), state, state + STATE, &removed[(t - start) * N]);
                }
                for (int64_t t = end - 1; t >= start; t--) {
                    const size_t o = at(t);
                    const float *before = &states[(t - start) * STATE], *after = before + STATE;
                    const float *pr = x.r + o, *pw = x.w + o, *pk = x.k + o, *pa = x.a + o, *pb = x.b + o;
                    alignas(64) float gr[N] = {0}, gw[N] = {0}, gk[N] = {0}, ga[N] = {0}, gb[N] = {0};
                    for (int i = 0; i < N; i++) {
                        const float *s = before + i * N, *z = after + i * N;
                        float *d = &ds[i * N], y = pdy[o + i], value = x.v[o + i], sa = removed[(t - start) * N + i];
                        float gv = 0, gsa = 0;
                        for (int j = 0; j < N; j++) {
                            float g = d[j] + y * pr[j];
                            d[j] = g;
                            gr[j] += y * z[j];
                            gw[j] += g * s[j];
                            gk[j] += g * value;
                            gb[j] += g * sa;
                            gv += g * pk[j];
                            gsa += g * pb[j];
                        }
                        for (int j = 0; j < N; j++) {
                            ga[j] += gsa * s[j];
                            d[j] = d[j] * pw[j] + gsa * pa[j];
                        }
                        out[3][o + i] = gv;
                    }
                    memcpy(out[0] + o, gr, sizeof gr);
                    memcpy(out[1] + o, gw, sizeof gw);
                    memcpy(out[2] + o, gk, sizeof gk);
                    memcpy(out[4] + o, ga, sizeof ga);
                    memcpy(out[5] + o, gb, sizeof gb);
                }
            }
        }
    }
    return gradients;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward);
    m.def("backward", &backward);
}
