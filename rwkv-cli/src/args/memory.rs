use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use rwkv_model::cache::source::Io;
use rwkv_model::cache::{ReadAhead, VerifyReads};
use rwkv_model::{ModelOptions, Residency, available_memory};

use crate::exit::Stop;

/// How much memory the model may take, and how its weights are read. Results do not depend on it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryArgs {
    /// A bound for the memory of the model, such as 512MiB or 4GB; what does not fit is read again for every token. `auto` takes
    /// what is available [default: auto]
    #[arg(long, value_name = "SIZE|auto", value_parser = ram, allow_negative_numbers = true)]
    ram: Option<Ram>,

    /// Where the weights are: all in memory, streamed within --ram, or left to the page cache [default: auto]
    #[arg(long, value_name = "WHERE")]
    residency: Option<Where>,

    /// How far ahead of use weights that stream are read [default: adaptive]
    #[arg(long, value_name = "HOW", value_parser = named::<ReadAhead>(["off", "next", "adaptive"]))]
    read_ahead: Option<ReadAhead>,

    /// How the pack is read [default: auto]
    #[arg(long, value_name = "MODE", value_parser = named::<Io>(["auto", "direct", "buffered", "mmap"]))]
    io: Option<Io>,

    /// Which reads of weights are checked against their checksums [default: first]
    #[arg(long, value_name = "WHICH", value_parser = named::<VerifyReads>(["first", "every"]))]
    verify: Option<VerifyReads>,
}

#[derive(Debug, Clone, Copy)]
enum Ram {
    Auto,
    Bytes(u64),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Where {
    /// In memory if they fit, else streamed
    Auto,
    Resident,
    Stream,
    Mmap,
}

impl MemoryArgs {
    /// Whether anything was asked for that decides where the weights are.
    pub fn is_given(&self) -> bool {
        self.ram.is_some() || self.residency.is_some()
    }

    /// Adds to the options what was asked for.
    ///
    /// # Errors
    /// A size for a residency that has none.
    pub fn apply(&self, options: ModelOptions) -> Result<ModelOptions> {
        let mut options = options.residency(self.residency()?);
        if let Some(read_ahead) = self.read_ahead {
            options = options.read_ahead(read_ahead);
        }
        if let Some(io) = self.io {
            options = options.io(io);
        }
        if let Some(verify) = self.verify {
            options = options.verify_reads(verify);
        }
        Ok(options)
    }

    /// How weights that stream are read.
    pub fn io(&self) -> Io {
        self.io.unwrap_or_default()
    }

    fn residency(&self) -> Result<Residency> {
        let residency = match (self.residency.unwrap_or(Where::Auto), self.ram.unwrap_or(Ram::Auto)) {
            (Where::Auto | Where::Stream, Ram::Bytes(budget_bytes)) => Residency::Stream { budget_bytes },
            (Where::Auto, Ram::Auto) => Residency::Auto,
            (Where::Stream, Ram::Auto) => match available_memory() {
                Some(available) => Residency::Stream { budget_bytes: available / 4 * 3 },
                None => {
                    let line = "the system does not say how much memory is available: --residency stream needs --ram SIZE";
                    return Err(Stop::usage(line));
                }
            },
            (Where::Resident, Ram::Auto) => Residency::Resident,
            (Where::Mmap, Ram::Auto) => Residency::Mapped,
            (Where::Resident | Where::Mmap, Ram::Bytes(_)) => {
                return Err(Stop::usage(
                    "--ram bounds weights that stream; --residency resident and mmap take what they take",
                ));
            }
        };
        Ok(residency)
    }
}

/// Reads a value by its name.
fn named<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

fn ram(text: &str) -> Result<Ram, String> {
    if text == "auto" { Ok(Ram::Auto) } else { size(text).map(Ram::Bytes) }
}

/// Reads a number of bytes: `1073741824`, `512MiB`, `1.5GB`.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; expected one such as 1073741824, 512MiB, 1.5GiB or 4GB");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || part.is_empty() || part.len() > 9 {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let billionths: u64 = format!("{part:0<9}").parse().map_err(|_| wrong())?;
    let bytes =
        u128::from(whole) * u128::from(unit) + u128::from(billionths) * u128::from(unit) / 1_000_000_000;
    u64::try_from(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_all_units() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("7B", 7),
            ("1KiB", 1 << 10),
            ("512MiB", 512 << 20),
            ("512mib", 512 << 20),
            ("2 GiB", 2 << 30),
            ("1TiB", 1 << 40),
            ("1.5GiB", 3 << 29),
            ("0.25MB", 250_000),
            ("4GB", 4_000_000_000),
            ("3KB", 3_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "MiB", "-1", "1M", "1.GiB", ".5GiB", "1.2.3GB", "1e9", "18446744073709551616", "99999999TiB"]
        {
            let error = size(text).unwrap_err();
            assert!(error.contains("expected one such as"), "{text}: {error}");
        }
    }
}
