use std::fmt;

use super::{Shapes, squeeze};
use crate::error::Result;

/// A family of models, or a spelling of one, as told by tensor names and shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// RWKV-4.
    Rwkv4,
    /// RWKV-5.0: one decay per head, no gate.
    Rwkv5_0,
    /// RWKV-5.1: one decay per head, with a gate.
    Rwkv5_1,
    /// RWKV-5.2, Eagle: a decay per channel.
    Rwkv5_2,
    /// RWKV-6, Finch.
    Rwkv6,
    /// RWKV-7, Goose: run by this crate.
    Rwkv7,
    /// RWKV-7a: RWKV-7 with DeepEmbed tables in the channel mix.
    Rwkv7a,
    /// RWKV-7b: RWKV-7a with attention over a token cache.
    Rwkv7b,
    /// RWKV-8: an embedding network or suffix automaton beside the RWKV-7 blocks.
    Rwkv8,
    /// RWKV-X: RWKV-7 blocks interleaved with attention blocks; run by this crate.
    RwkvX,
    /// RWKV-7 in web-rwkv's `.st` spelling: low-rank matrices swapped.
    WebRwkv,
    /// RWKV-7 in the spelling of flash-linear-attention and Hugging Face transformers.
    Fla,
    /// RWKV of an older version in the spelling of Hugging Face transformers.
    HfRwkv,
    /// Names as in a GGUF file.
    Gguf,
    /// A transformer (Llama, Qwen, Mistral, GPT and the like).
    Transformer,
    /// None of these.
    Unknown,
}

impl Family {
    /// Recognises the family of a checkpoint by its tensors' names and shapes.
    ///
    /// # Errors
    /// [`ErrorKind::Checkpoint`](crate::ErrorKind) if a name appears twice.
    pub fn detect<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Result<Family> {
        Ok(Shapes::new(tensors)?.family())
    }

    pub(crate) fn of(shapes: &Shapes<'_>) -> Family {
        let any = |part: &str| shapes.names().any(|name| name.contains(part));
        let starts = |prefix: &str| shapes.names().any(|name| name.starts_with(prefix));
        if starts("moba.") {
            return Family::RwkvX;
        }
        if starts("blk.") || shapes.has("token_embd.weight") {
            return Family::Gguf;
        }
        if starts("model.") || starts("transformer.") || starts("rwkv.") || shapes.has("lm_head.weight") {
            return match () {
                () if any("_lora.lora.") || any(".r_proj.") => Family::Fla,
                () if starts("rwkv.blocks.") && any(".att.r_k") => Family::RwkvX,
                () if any(".attention.time_") || starts("rwkv.") => Family::HfRwkv,
                () if any("self_attn") || any(".attn.") || any(".mlp.") => Family::Transformer,
                () => Family::Unknown,
            };
        }
        if !starts("blocks.") {
            let transformer = starts("layers.") || starts("h.") || any("self_attn") || any(".attention.");
            return if transformer { Family::Transformer } else { Family::Unknown };
        }
        if any(".att.r_k") {
            return Family::of_rwkv7(shapes);
        }
        Family::of_older(shapes)
    }

    fn of_rwkv7(shapes: &Shapes<'_>) -> Family {
        let any = |part: &str| shapes.names().any(|name| name.contains(part));
        if any(".ffn.enn.") || any("rosa") {
            return Family::Rwkv8;
        }
        if any(".qkv.") {
            return Family::Rwkv7b;
        }
        if any(".ffn.s_emb") {
            return Family::Rwkv7a;
        }
        let width = shapes.get("emb.weight").and_then(|shape| squeeze(shape).last().copied());
        let w1 = shapes.get("blocks.0.att.w1").map(squeeze);
        match (width, w1.as_deref()) {
            (Some(width), Some(&[rows, columns])) if rows != width && columns == width => Family::WebRwkv,
            _ => Family::Rwkv7,
        }
    }

    fn of_older(shapes: &Shapes<'_>) -> Family {
        let any = |part: &str| shapes.names().any(|name| name.contains(part));
        // web-rwkv renames `time_maa` to `time_mix`, but keeps its low-rank matrices.
        if any(".att.time_maa_x") || any(".att.time_mix_x") || any(".att.time_decay_w1") {
            return Family::Rwkv6;
        }
        if any(".att.ln_x.") {
            if !any(".att.gate.") {
                return Family::Rwkv5_0;
            }
            return match shapes.get("blocks.0.att.time_decay") {
                Some(&[_, channels, ..]) if channels > 1 => Family::Rwkv5_2,
                _ => Family::Rwkv5_1,
            };
        }
        if any(".att.time_decay") { Family::Rwkv4 } else { Family::Unknown }
    }

    /// Why a checkpoint of this family is not run, and what to do.
    pub(crate) fn refusal(self) -> String {
        let advice = match self {
            Family::Rwkv7 | Family::RwkvX => "supported",
            Family::WebRwkv | Family::Fla => {
                "not read in this spelling; use the official checkpoint (names like blocks.0.att.w1, shape [width, rank])"
            }
            Family::Gguf => "not read in this spelling; use the official checkpoint",
            Family::Unknown => "not recognised as any RWKV model; expected tensors like blocks.0.att.r_k",
            _ => "not supported; only RWKV-7 and RWKV-X are",
        };
        format!("the checkpoint is {self}: {advice}")
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Rwkv4 => "RWKV-4",
            Family::Rwkv5_0 => "RWKV-5.0",
            Family::Rwkv5_1 => "RWKV-5.1",
            Family::Rwkv5_2 => "RWKV-5.2",
            Family::Rwkv6 => "RWKV-6",
            Family::Rwkv7 => "RWKV-7",
            Family::Rwkv7a => "RWKV-7a (DeepEmbed)",
            Family::Rwkv7b => "RWKV-7b",
            Family::Rwkv8 => "RWKV-8",
            Family::RwkvX => "RWKV-X",
            Family::WebRwkv => "RWKV-7 in web-rwkv's spelling",
            Family::Fla => "RWKV-7 in the spelling of flash-linear-attention",
            Family::HfRwkv => "an older RWKV in the spelling of Hugging Face transformers",
            Family::Gguf => "in GGUF's spelling",
            Family::Transformer => "a transformer (Llama or alike)",
            Family::Unknown => "unknown",
        })
    }
}
