use half::bf16;
use rwkv_pack::{Checksum, DType, SourceInfo, TensorInfo};

use crate::config::Config;
use crate::convert::WeightSource;
use crate::error::{Result, bail};
use crate::names::{BlockVector, LowRank, Matrix, Role, expected};
use crate::rng::Rng;

/// A checkpoint of random weights, made as it is read: to measure a machine before a model is downloaded, and for tests.
///
/// The same sizes, seed and share of zeros give the same weights. Activations stay of ordinary size through all blocks, and a
/// chosen share of the channel mix's hidden values is zero, as in trained models; the text is noise.
#[derive(Debug, Clone)]
pub struct Synthetic {
    name: String,
    config: Config,
    seed: u64,
    relu_zeros: f64,
    roles: Vec<Role>,
    tensors: Vec<TensorInfo>,
}

/// Values of a tensor: uniform around `mean`, at most `spread` from it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Uniform {
    mean: f32,
    spread: f32,
}

impl Synthetic {
    /// Random weights of these sizes; 85 % of the channel mix's hidden values will be zero.
    pub fn new(config: Config, seed: u64) -> Synthetic {
        let expected = expected(&config);
        let tensors = expected.iter().map(|tensor| TensorInfo {
            name: tensor.role.name(),
            dtype: DType::Bf16,
            shape: tensor.dims.clone(),
        });
        Synthetic {
            name: format!("synthetic-{}x{}-{seed}", config.layers, config.width),
            tensors: tensors.collect(),
            roles: expected.iter().map(|tensor| tensor.role).collect(),
            config,
            seed,
            relu_zeros: 0.85,
        }
    }

    /// About this share of the channel mix's hidden values will be zero.
    ///
    /// # Errors
    /// The share is not between 0.001 and 0.999.
    pub fn relu_zeros(mut self, share: f64) -> Result<Synthetic> {
        if !(0.001..=0.999).contains(&share) {
            bail!(Parameter, "share of zeros is {share}; expected 0.001 to 0.999");
        }
        self.relu_zeros = share;
        Ok(self)
    }

    /// The sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn values(&self, role: Role) -> Uniform {
        let about = |mean, spread| Uniform { mean, spread };
        // A uniform distribution of variance 1 / inputs keeps the size of what it is multiplied with.
        let matrix = |inputs: usize| about(0.0, (3.0 / inputs as f32).sqrt());
        let into_residual = (2.0 * self.config.layers as f32).sqrt().recip();
        match role {
            Role::Embedding => about(0.0, 1.0),
            Role::Head => matrix(self.config.width),
            Role::Ln0Weight | Role::LnOutWeight => about(1.0, 0.1),
            Role::Ln0Bias | Role::LnOutBias => about(0.0, 0.1),
            Role::Vector(_, vector) => vector_values(vector),
            Role::LowRank(_, which, _) => {
                let Uniform { spread, .. } = matrix(self.config.width.min(which.rank(&self.config)));
                about(0.0, if which == LowRank::G { spread } else { 0.3 * spread })
            }
            Role::Matrix(_, Matrix::FfnKey) => {
                // The inputs are normed values of variance 1 plus a bias of 1, so a row's product with them is of
                // variance 2 and moved by its sum; 0.8 is what the token shift leaves of the first variance.
                let deviation = 1.8f64.sqrt();
                let mean = -normal_quantile(self.relu_zeros) * deviation / self.config.width as f64;
                Uniform { mean: mean as f32, ..matrix(self.config.width) }
            }
            Role::Matrix(_, which) => {
                let Uniform { mean, spread } = matrix(which.dims(&self.config)[1]);
                let damped = matches!(which, Matrix::Output | Matrix::FfnValue);
                about(mean, if damped { spread * into_residual } else { spread })
            }
        }
    }
}

fn vector_values(vector: BlockVector) -> Uniform {
    let about = |mean, spread| Uniform { mean, spread };
    match vector {
        BlockVector::Ln1Weight | BlockVector::Ln2Weight | BlockVector::LnXWeight => about(1.0, 0.1),
        BlockVector::Ln1Bias | BlockVector::LnXBias => about(0.0, 0.1),
        BlockVector::Ln2Bias => about(1.0, 0.0),
        BlockVector::W0 => about(-2.0, 3.0),
        BlockVector::A0 => about(-0.5, 0.5),
        BlockVector::V0 => about(0.5, 0.5),
        BlockVector::KK => about(0.85, 0.1),
        BlockVector::KA => about(1.0, 0.1),
        BlockVector::RK => about(0.0, 0.1),
        BlockVector::FfnMixK => about(0.1, 0.1),
        _ => about(0.5, 0.5),
    }
}

impl WeightSource for Synthetic {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, index: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let Uniform { mean, spread } = self.values(self.roles[index]);
        let count: usize = self.tensors[index].shape.iter().product();
        let mut rng = Rng::new(self.seed ^ (index as u64) << 32);
        let step = spread / 32768.0;
        bytes.clear();
        bytes.reserve(2 * count.next_multiple_of(4));
        for _ in 0..count.div_ceil(4) {
            let word = rng.next_u64();
            for lane in 0..4 {
                let integer = (word >> (16 * lane)) as i16;
                bytes.extend(bf16::from_f32(f32::from(integer).mul_add(step, mean)).to_le_bytes());
            }
        }
        bytes.truncate(2 * count);
        Ok(())
    }

    fn info(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<SourceInfo> {
        let len = self.byte_len();
        progress(len, len);
        let description = format!("{:?} {} {}", self.config, self.seed, self.relu_zeros);
        Ok(SourceInfo { file_name: self.name.clone(), len, xxh3: Checksum::of(description.as_bytes()) })
    }
}

/// The `x` below which a standard normal variable is with probability `p`, to three digits.
///
/// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23.
fn normal_quantile(p: f64) -> f64 {
    if p < 0.5 {
        return -normal_quantile(1.0 - p);
    }
    let t = (-2.0 * (1.0 - p).ln()).sqrt();
    t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, x) in [(0.5, 0.0), (0.85, 1.0364), (0.975, 1.95996), (0.1, -1.28155)] {
            assert!((normal_quantile(p) - x).abs() < 1e-3, "{p}: {}", normal_quantile(p));
        }
    }

    #[test]
    fn tensors_are_those_of_the_configuration() {
        let config = Config::official("0.1b").unwrap();
        let source = Synthetic::new(config.clone(), 1);
        let shapes = source.tensors().iter().map(|tensor| (tensor.name.as_str(), &*tensor.shape));
        assert_eq!(Config::from_shapes(shapes).unwrap(), config);
        assert_eq!(source.byte_len(), 2 * config.parameters());
    }
}
