//! The weights of the model, by hand.
//!
//! Every token has a random code of +1 and -1. In the only block the token shift gives each token two faces: its
//! **key** is the code of the token before it, its **value** its own code. The state of the time mix takes the pair in
//! by the delta rule, at the full rate and without decay:
//!
//! ```text
//! S = S (I - k k^T) + v k^T           k of length 1: whatever S had for k is replaced by v
//! y = S r                             r is the token's own code: y is what came after it the last time
//! ```
//!
//! The head looks for the token whose code is most like `y`. Its codes are turned by half the width, and so is `y`, so
//! that the token just read, which is in the residual stream too, does not look like the one to say. A bias lets the end
//! of text win if no token is much like `y`. Keys are not quite orthogonal, so older pairs fade: the memory is good
//! for some hundred tokens.

use rwkv_model::pack::{Checksum, DType, SourceInfo, TensorInfo};
use rwkv_model::{ModelError, WeightSource};

const VOCAB: usize = 65536;
const HEADS: usize = 2;
const HEAD_SIZE: usize = 128;
const WIDTH: usize = HEADS * HEAD_SIZE;
/// Of the low-rank matrices, and of the channel mix, which has nothing to do.
const RANK: usize = 16;

/// Logistic functions of this are 1, and of its negative 0.
const SATURATED: f32 = 20.0;
/// How much louder `y` is than the token in the residual stream.
const LOUDNESS: f32 = 4.0;
/// How much of the end of text is in every answer.
const END: f32 = 0.4;

/// What a tensor's element is, by row and column.
type Element = fn(usize, usize) -> f32;

pub(crate) struct Recall {
    tensors: Vec<TensorInfo>,
    elements: Vec<Element>,
}

/// Channel `c` of a token's code.
fn code(token: usize, c: usize) -> f32 {
    // splitmix64: a number whose bits are the signs of 64 channels.
    let mut z = (token * WIDTH / 64 + c / 64) as u64;
    z = z.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    if z >> (c % 64) & 1 == 1 { 1.0 } else { -1.0 }
}

/// The channel half the width away.
fn turned(c: usize) -> usize {
    (c + WIDTH / 2) % WIDTH
}

fn identity(row: usize, column: usize) -> f32 {
    f32::from(u8::from(row == column))
}

impl Recall {
    pub(crate) fn new() -> Recall {
        let mut recall = Recall { tensors: Vec::new(), elements: Vec::new() };
        let (zero, one): (Element, Element) = (|_, _| 0.0, |_, _| 1.0);
        let (c, block) = (WIDTH, "blocks.0");

        recall.tensor("emb.weight", &[VOCAB, c], code);
        for norm in ["ln0", "ln1", "ln2", "att.ln_x"] {
            recall.tensor(&format!("{block}.{norm}.weight"), &[c], one);
            recall.tensor(&format!("{block}.{norm}.bias"), &[c], zero);
        }
        // The share of the token before: all of it for the key.
        for x in ["x_r", "x_w", "x_v", "x_a", "x_g"] {
            recall.tensor(&format!("{block}.att.{x}"), &[c], zero);
        }
        recall.tensor("blocks.0.att.x_k", &[c], one);
        // No decay; the full learning rate; a gate that is open: 0.5 * RANK * 2 / RANK = 1.
        recall.tensor("blocks.0.att.w0", &[c], |_, _| -SATURATED);
        recall.tensor("blocks.0.att.a0", &[c], |_, _| SATURATED);
        for down in ["w1", "a1", "g1"] {
            recall.tensor(&format!("{block}.att.{down}"), &[c, RANK], zero);
        }
        recall.tensor("blocks.0.att.w2", &[RANK, c], zero);
        recall.tensor("blocks.0.att.a2", &[RANK, c], zero);
        recall.tensor("blocks.0.att.g2", &[RANK, c], |_, _| 2.0 / RANK as f32);
        // The key that is removed is the key that is written, and no value goes past the state.
        recall.tensor("blocks.0.att.k_k", &[c], one);
        recall.tensor("blocks.0.att.k_a", &[c], one);
        recall.tensor("blocks.0.att.r_k", &[HEADS, HEAD_SIZE], zero);
        recall.tensor("blocks.0.att.receptance.weight", &[c, c], identity);
        recall.tensor("blocks.0.att.key.weight", &[c, c], |row, column| {
            identity(row, column) / (HEAD_SIZE as f32).sqrt()
        });
        recall.tensor("blocks.0.att.value.weight", &[c, c], identity);
        recall.tensor("blocks.0.att.output.weight", &[c, c], |row, column| {
            LOUDNESS * identity(turned(row), column)
        });
        recall.tensor("blocks.0.ffn.x_k", &[c], zero);
        recall.tensor("blocks.0.ffn.key.weight", &[RANK, c], zero);
        recall.tensor("blocks.0.ffn.value.weight", &[c, RANK], zero);
        recall.tensor("ln_out.weight", &[c], one);
        recall.tensor("ln_out.bias", &[c], |channel, _| END * code(0, turned(channel)));
        recall.tensor("head.weight", &[VOCAB, c], |token, channel| code(token, turned(channel)) / 8.0);
        recall
    }

    fn tensor(&mut self, name: &str, shape: &[usize], element: Element) {
        self.tensors.push(TensorInfo { name: name.into(), dtype: DType::F32, shape: shape.to_vec() });
        self.elements.push(element);
    }
}

/// What `convert` asks of a checkpoint.
impl WeightSource for Recall {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, index: usize, bytes: &mut Vec<u8>) -> Result<(), ModelError> {
        let shape = &self.tensors[index].shape;
        bytes.clear();
        for row in 0..shape[0] {
            for column in 0..shape.get(1).copied().unwrap_or(1) {
                bytes.extend(self.elements[index](row, column).to_le_bytes());
            }
        }
        Ok(())
    }

    fn info(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<SourceInfo, ModelError> {
        let len = self.byte_len();
        progress(len, len);
        Ok(SourceInfo { file_name: "recall".into(), len, xxh3: Checksum::of(b"recall 1") })
    }
}
