//! RWKV-7 and RWKV-X in plain loops over f64, straight from the formulas: one token at a time, nothing shared with the engine.

use rwkv_model::{Attention, Compression};

use super::random::Weights;

/// What the reference remembers of a session.
#[derive(Clone)]
pub struct Memory {
    pub att_x: Vec<Vec<f64>>,
    pub ffn_x: Vec<Vec<f64>>,
    /// Per block and head, `[value][key]`.
    pub s: Vec<Vec<Vec<Vec<f64>>>>,
    pub attention: Vec<AttentionMemory>,
}

/// What an attention block remembers.
#[derive(Clone)]
pub struct AttentionMemory {
    pub ffn_x: Vec<f64>,
    /// Per head, row after row: key and value of 64 channels.
    pub heads: Vec<Vec<KeyAndValue>>,
}

/// What a token went through.
#[derive(Default)]
pub struct Trace {
    /// The residual stream before each block of either kind, in the order in which they run, and after the last.
    pub embeddings: Vec<Vec<f64>>,
    /// For each attention block and head the weights of the visible rows.
    pub attention: Vec<Vec<Vec<f64>>>,
    pub logits: Vec<f64>,
}

type KeyAndValue = (Vec<f64>, Vec<f64>);

pub struct Reference<'a> {
    weights: &'a Weights,
    attention: Attention,
}

impl<'a> Reference<'a> {
    pub fn new(weights: &'a Weights) -> Reference<'a> {
        Reference::attending(weights, Attention::Full)
    }

    pub fn attending(weights: &'a Weights, attention: Attention) -> Reference<'a> {
        Reference { weights, attention }
    }

    pub fn memory(&self) -> Memory {
        let c = &self.weights.config;
        let head = vec![vec![0.0; c.head_size]; c.head_size];
        Memory {
            att_x: vec![vec![0.0; c.width]; c.layers],
            ffn_x: vec![vec![0.0; c.width]; c.layers],
            s: vec![vec![head; c.heads]; c.layers],
            attention: vec![
                AttentionMemory {
                    ffn_x: vec![0.0; c.width],
                    heads: vec![Vec::new(); c.width / 64]
                };
                c.attention
            ],
        }
    }

    fn vector(&self, name: &str) -> Vec<f64> {
        self.weights.get(name).iter().map(|&v| f64::from(v)).collect()
    }

    /// `W x` for a matrix stored `[out, in]`.
    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = self.weights.get(name);
        w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
    }

    /// `x W` for a matrix stored `[in, out]`.
    fn through(&self, x: &[f64], name: &str) -> Vec<f64> {
        let w = self.weights.get(name);
        let outputs = w.len() / x.len();
        (0..outputs)
            .map(|o| x.iter().enumerate().map(|(i, x)| x * f64::from(w[i * outputs + o])).sum())
            .collect()
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let normed = standardized(x, 1e-5);
        let (w, b) = (self.vector(&format!("{name}.weight")), self.vector(&format!("{name}.bias")));
        normed.iter().zip(w).zip(b).map(|((x, w), b)| x * w + b).collect()
    }

    /// The logits after one more token.
    pub fn step(&self, memory: &mut Memory, token: u32) -> Vec<f64> {
        self.trace(memory, token).logits
    }

    /// One more token, with what it goes through.
    pub fn trace(&self, memory: &mut Memory, token: u32) -> Trace {
        let mut trace = Trace::default();
        let c = self.weights.config.width;
        let emb = &self.vector("emb.weight")[token as usize * c..][..c];
        let mut x = self.norm(emb, "blocks.0.ln0");
        let mut v_first = Vec::new();
        let (layers, attention) = (self.weights.config.layers, self.weights.config.attention);
        let run = layers / attention.max(1);
        for block in 0..run * attention.max(1) {
            trace.embeddings.push(x.clone());
            let normed = self.norm(&x, &format!("blocks.{block}.ln1"));
            let out = self.time_mix(block, &normed, memory, &mut v_first);
            add(&mut x, &out);
            let normed = self.norm(&x, &format!("blocks.{block}.ln2"));
            let out = self.channel_mix(&format!("blocks.{block}"), &normed, &mut memory.ffn_x[block]);
            add(&mut x, &out);
            if attention > 0 && block % run == run - 1 {
                let (name, memory) = (format!("moba.{}", block / run), &mut memory.attention[block / run]);
                trace.embeddings.push(x.clone());
                let normed = self.norm(&x, &format!("{name}.ln1"));
                let (out, weights) = self.attend(&name, &normed, memory);
                trace.attention.push(weights);
                add(&mut x, &out);
                let normed = self.norm(&x, &format!("{name}.ln2"));
                let out = self.channel_mix(&name, &normed, &mut memory.ffn_x);
                add(&mut x, &out);
            }
        }
        trace.logits = self.times("head.weight", &self.norm(&x, "ln_out"));
        trace.embeddings.push(x);
        trace
    }

    fn time_mix(&self, block: usize, x: &[f64], memory: &mut Memory, v_first: &mut Vec<f64>) -> Vec<f64> {
        let name = |suffix: &str| format!("blocks.{block}.att.{suffix}");
        let vector = |suffix: &str| self.vector(&name(suffix));
        let prev = std::mem::replace(&mut memory.att_x[block], x.to_vec());
        let mixed = |letter: &str| -> Vec<f64> {
            let mix = vector(&format!("x_{letter}"));
            x.iter().zip(&prev).zip(mix).map(|((x, prev), mix)| x + (prev - x) * mix).collect()
        };
        let r = self.times(&name("receptance.weight"), &mixed("r"));
        let k = self.times(&name("key.weight"), &mixed("k"));
        let mut v = self.times(&name("value.weight"), &mixed("v"));
        let hidden: Vec<f64> = self.through(&mixed("w"), &name("w1")).iter().map(|h| h.tanh()).collect();
        let w: Vec<f64> = sum(&vector("w0"), &self.through(&hidden, &name("w2")))
            .iter()
            .map(|w| (-(-0.5f64).exp() * sigmoid(*w)).exp())
            .collect();
        let hidden = self.through(&mixed("a"), &name("a1"));
        let a: Vec<f64> =
            sum(&vector("a0"), &self.through(&hidden, &name("a2"))).iter().map(|a| sigmoid(*a)).collect();
        let hidden: Vec<f64> = self.through(&mixed("g"), &name("g1")).iter().map(|h| sigmoid(*h)).collect();
        let g = self.through(&hidden, &name("g2"));
        if block == 0 {
            v_first.clone_from(&v);
        } else {
            let hidden = self.through(&mixed("v"), &name("v1"));
            let gate = sum(&vector("v0"), &self.through(&hidden, &name("v2")));
            for ((v, first), gate) in v.iter_mut().zip(&*v_first).zip(gate) {
                *v += (first - *v) * sigmoid(gate);
            }
        }
        let (k_k, k_a, r_k) = (vector("k_k"), vector("k_a"), vector("r_k"));
        let (ln_w, ln_b) = (vector("ln_x.weight"), vector("ln_x.bias"));
        let n = self.weights.config.head_size;
        let mut out = Vec::new();
        for head in 0..self.weights.config.heads {
            let at = head * n..(head + 1) * n;
            let raw: Vec<f64> = at.clone().map(|i| k[i] * k_k[i]).collect();
            let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            let kk: Vec<f64> = raw.iter().map(|x| x / length).collect();
            let key: Vec<f64> = at.clone().map(|i| k[i] * (1.0 + (a[i] - 1.0) * k_a[i])).collect();
            let (r, w, v, a) = (&r[at.clone()], &w[at.clone()], &v[at.clone()], &a[at.clone()]);
            let state = &mut memory.s[block][head];
            let mut y = Vec::new();
            for (p, row) in state.iter_mut().enumerate() {
                let removed: f64 = row.iter().zip(&kk).map(|(s, kk)| s * -kk).sum();
                for q in 0..n {
                    row[q] = row[q] * w[q] + removed * kk[q] * a[q] + v[p] * key[q];
                }
                y.push(row.iter().zip(r).map(|(s, r)| s * r).sum::<f64>());
            }
            let bonus: f64 = (0..n).map(|q| r[q] * key[q] * r_k[head * n + q]).sum();
            let normed = standardized(&y, 64e-5);
            out.extend((0..n).map(|p| {
                let i = head * n + p;
                (normed[p] * ln_w[i] + ln_b[i] + bonus * v[p]) * g[i]
            }));
        }
        self.times(&name("output.weight"), &out)
    }

    /// Attention of one token, by the rules for decoding, and the weights of each head.
    fn attend(&self, name: &str, x: &[f64], memory: &mut AttentionMemory) -> (Vec<f64>, Vec<Vec<f64>>) {
        let project = |matrix: &str| self.times(&format!("{name}.att.{matrix}.weight"), x);
        let [q, k, v] = ["receptance", "key", "value"].map(project);
        let of = |row: &[f64], head: usize| row[head * 64..][..64].to_vec();
        let weights = |q: &[f64], rows: &[&KeyAndValue]| -> Vec<f64> {
            let scores: Vec<f64> = rows.iter().map(|(key, _)| inner(q, key) / 8.0).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            scores.iter().map(|score| (score - max).exp() / total).collect()
        };
        let top_k = if let Attention::TopK(top_k) = self.attention { Some(top_k) } else { None };
        if let Some(Compression { above, keep, window }) = top_k.and_then(|top_k| top_k.compression)
            && memory.heads[0].len() > above
        {
            for (head, rows) in memory.heads.iter_mut().enumerate() {
                let past = rows.len() - window;
                let votes = weights(&of(&q, head), &rows[..past].iter().collect::<Vec<_>>());
                let mut order: Vec<usize> = (0..past).collect();
                order.sort_by(|&a, &b| votes[b].total_cmp(&votes[a]));
                let best = order[..keep - window].iter().map(|&row| rows[row].clone());
                *rows = best.chain(rows[past..].iter().cloned()).collect();
            }
        }
        let cached = memory.heads[0].len();
        let mut visible = vec![true; cached + 1];
        match self.attention {
            Attention::Window(window) => visible.iter_mut().rev().skip(window).for_each(|v| *v = false),
            Attention::TopK(top_k) if cached > top_k.short_rows => {
                let rows = top_k.chunk_rows;
                let score = |chunk: usize| -> f64 {
                    let of_rows = |(head, all): (usize, &Vec<KeyAndValue>)| -> f64 {
                        all[chunk * rows..][..rows].iter().map(|(key, _)| inner(&of(&q, head), key)).sum()
                    };
                    memory.heads.iter().enumerate().map(of_rows).sum()
                };
                let mut order: Vec<usize> = (0..cached / rows).collect();
                order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
                for chunk in order.into_iter().skip(top_k.chunks) {
                    visible[chunk * rows..][..rows].fill(false);
                }
            }
            _ => {}
        }
        let (mut out, mut all_weights) = (Vec::new(), Vec::new());
        for (head, rows) in memory.heads.iter_mut().enumerate() {
            rows.push((of(&k, head), of(&v, head)));
            let seen: Vec<_> =
                rows.iter().zip(&visible).filter(|(_, seen)| **seen).map(|(row, _)| row).collect();
            let weights = weights(&of(&q, head), &seen);
            let channel =
                |c: usize| seen.iter().zip(&weights).map(|((_, value), w)| w * value[c]).sum::<f64>();
            out.extend((0..64).map(channel));
            all_weights.push(weights);
        }
        (self.times(&format!("{name}.att.output.weight"), &out), all_weights)
    }

    fn channel_mix(&self, block: &str, x: &[f64], ffn_x: &mut Vec<f64>) -> Vec<f64> {
        let prev = std::mem::replace(ffn_x, x.to_vec());
        let mix = self.vector(&format!("{block}.ffn.x_k"));
        let mixed: Vec<f64> =
            x.iter().zip(prev).zip(mix).map(|((x, prev), mix)| x + (prev - x) * mix).collect();
        let hidden = self.times(&format!("{block}.ffn.key.weight"), &mixed);
        let hidden: Vec<f64> = hidden.iter().map(|h| h.max(0.0).powi(2)).collect();
        self.times(&format!("{block}.ffn.value.weight"), &hidden)
    }
}

fn standardized(x: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| (x - mean) / (var + eps).sqrt()).collect()
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
