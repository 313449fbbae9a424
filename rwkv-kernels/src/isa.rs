use std::fmt;
use std::sync::OnceLock;

/// An instruction set that this machine has.
///
/// The token is the proof: it can only be obtained from [`Isa::detect`], [`Isa::available`],
/// [`Isa::from_env`] or [`Isa::scalar`], so a kernel that receives one may use its instructions.
/// Every kernel returns the same bits for every `Isa`; the choice is a matter of speed alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

/// What an [`Isa`] stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Portable code: the definitions themselves.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL, with the integer dot product widened to 16 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

/// The value of `RWKV_ISA` names an instruction set that does not exist or that this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instruction set {asked:?} is not available here (available: {available})")]
pub struct IsaError {
    asked: String,
    available: String,
}

impl Isa {
    /// The best instruction set of this machine, detected once.
    pub fn detect() -> Isa {
        *Isa::available().last().expect("scalar is always available")
    }

    /// Every instruction set of this machine, slowest first. The first is [`Isa::scalar`].
    pub fn available() -> &'static [Isa] {
        static AVAILABLE: OnceLock<Vec<Isa>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            #[allow(unused_mut, reason = "only x86-64 adds to it")]
            let mut list = vec![Isa(Kind::Scalar)];
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::is_x86_feature_detected as has;
                if has!("avx2") && has!("fma") && has!("f16c") {
                    list.push(Isa(Kind::Avx2));
                    if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                        list.push(Isa(Kind::Avx512));
                        if has!("avx512vnni") {
                            list.push(Isa(Kind::Avx512Vnni));
                        }
                    }
                }
            }
            list
        })
    }

    /// The portable definitions.
    pub fn scalar() -> Isa {
        Isa(Kind::Scalar)
    }

    /// The instruction set with this [`name`](Isa::name), if this machine has it.
    ///
    /// `avx512` means the best AVX-512 variant of the machine.
    pub fn by_name(name: &str) -> Option<Isa> {
        let all = Isa::available();
        match name {
            "avx512" => all.iter().rev().find(|isa| isa.name().starts_with("avx512")).copied(),
            _ => all.iter().find(|isa| isa.name() == name).copied(),
        }
    }

    /// [`Isa::detect`], unless the environment variable `RWKV_ISA` names another one.
    ///
    /// # Errors
    /// The variable is set to something that [`Isa::by_name`] does not find.
    pub fn from_env() -> Result<Isa, IsaError> {
        match std::env::var("RWKV_ISA") {
            Ok(asked) if !asked.is_empty() => Isa::by_name(&asked).ok_or_else(|| IsaError {
                asked,
                available: Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
            }),
            _ => Ok(Isa::detect()),
        }
    }

    /// `scalar`, `avx2`, `avx512-bw` (no VNNI) or `avx512-vnni`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512-bw",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512-vnni",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Isa({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_own_isa() {
        for &isa in Isa::available() {
            assert_eq!(Isa::by_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::by_name("sse9"), None);
        assert_eq!(Isa::available()[0], Isa::scalar());
    }
}
