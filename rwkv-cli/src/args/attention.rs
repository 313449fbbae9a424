use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rwkv_model::kernels::KvFormat;
use rwkv_model::{Attention, Config, ModelOptions};

use super::memory::size;
use crate::exit::Stop;

/// What tokens attend to in RWKV-X, and what that may take.
#[derive(Debug, Clone, Args)]
pub struct AttentionArgs {
    /// RWKV-X: what a token attends to: full, window:N (the last N tokens), top-k:B,k (the k best chunks of B tokens);
    /// a saved state keeps what it was begun with [default: full]
    #[arg(long, value_name = "POLICY")]
    attention: Option<Attention>,

    /// RWKV-X: how keys and values are stored; a saved state keeps what it was begun with [default: f16]
    #[arg(long, value_name = "FORMAT", value_parser = kv_parser())]
    kv: Option<KvFormat>,

    /// RWKV-X: a bound for the memory of keys and values, a part of --ram [default: an eighth of it, and what weights leave]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    kv_ram: Option<u64>,
}

impl AttentionArgs {
    /// Adds to the options what was asked for.
    pub fn apply(&self, options: ModelOptions) -> ModelOptions {
        let options = match self.kv_ram {
            Some(bytes) => options.kv_bytes(bytes),
            None => options,
        };
        options.attention(self.attention.unwrap_or_default()).kv_format(self.kv.unwrap_or_default())
    }

    /// Whether the memory of keys and values was bounded.
    pub fn has_bound(&self) -> bool {
        self.kv_ram.is_some()
    }

    /// Refuses to be asked for something that a model does not have.
    pub fn check(&self, name: &str, config: &Config) -> Result<()> {
        let given = self.attention.is_some() || self.kv.is_some() || self.kv_ram.is_some();
        if config.attention == 0 && given {
            return Err(Stop::usage(format!(
                "{name}: is {}, without attention; --attention, --kv and --kv-ram are for RWKV-X",
                config.family()
            )));
        }
        Ok(())
    }
}

/// Reads the name of a format of keys and values.
fn kv_parser() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new([KvFormat::F16, KvFormat::F32].map(KvFormat::name))
        .try_map(|name| name.parse::<KvFormat>())
}
