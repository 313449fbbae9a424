//! `rwkv perplexity`: how well a model predicts a text, and what a codec costs.

mod report;
mod score;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use rwkv_model::kernels::{Codec, Team};
use rwkv_model::pack::FileFormat;
use rwkv_model::{Feed, Logits, Model, ModelOptions, State};
use rwkv_tokenizer::END_OF_TEXT;

use crate::args::{ModelArgs, PromptSource, VocabularyArgs, codec_parser, named_model};
use crate::console::Console;
use crate::exit::Stop;
use crate::output::Output;
use crate::progress::Progress;
use crate::vocabulary::Vocabulary;
use report::Report;
use score::{Distance, Fit, Score};

const AFTER_HELP: &str = "\
Every token of a file is scored. The file begins with a fresh state that was fed token 0, the end of text, as training begins a \
document; so the first token is predicted from that alone, and each other one from all before it. The state is carried on to \
the end of the file; the next file begins anew. A byte's share of the sum is bits per byte, which compares models of different \
vocabularies; a token's share, raised to the exponent, is the perplexity.

A file may be of any length: it is read, tokenised, and fed in chunks, in constant memory (but for the keys and values of \
RWKV-X; --attention window:N bounds those). The logits of a chunk are in memory at once, and count in --ram. No figure \
depends on the chunk, the number of threads, or --ram.

With --against, OTHER is the reference: the divergence is that of MODEL from it, the mean of ln p - ln q for tokens drawn from \
OTHER's probabilities p, in nats for each token of the text. A checkpoint as OTHER is packed as f32, which loses nothing. Both \
models are in memory, each within --ram.

Examples:
  rwkv perplexity model.pth book.txt
  rwkv perplexity model.pth --codec u4 --against model.pth held-out/*.txt
  rwkv perplexity small.rwkv --vocab small.vocab - --json < book.txt | jq .bits_per_byte";

/// Bytes that the logits of a chunk may take, where nothing else is said.
const LOGITS_BYTES: usize = 32 << 20;
/// Bytes of text read at a time.
const READ_BYTES: usize = 64 << 10;

/// Arguments of `rwkv perplexity`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, mut_args(named_model))]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Texts, each a document of its own; `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    vocabulary: VocabularyArgs,

    /// Compare with another pack, or checkpoint, of the same model
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,

    /// How OTHER is packed, if it is a checkpoint [default: f32]
    #[arg(long, value_name = "CODEC", requires = "against", value_parser = codec_parser())]
    against_codec: Option<Codec>,

    /// Feed so many tokens at a time [default: 256, or what keeps the logits within 32 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    chunk: Option<u32>,

    /// End after so many tokens
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `rwkv perplexity`.
pub fn run(args: &PerplexityArgs, console: Console) -> Result<()> {
    let vocabulary = args.vocabulary.load_for(&args.model)?;
    // Before a checkpoint is packed, which takes long.
    for path in args.files.iter().filter(|path| *path != Path::new("-")) {
        PromptSource::check(path)?;
    }
    let mut options = ModelOptions::default().all_logits(true);
    if let Some(chunk) = args.chunk {
        options = options.chunk_rows(chunk as usize);
    }
    let model = args.model.open(console, options.clone())?;
    let vocab = model.config().vocab;
    vocabulary.warn_unless_fit(vocab, console);
    let reference = match &args.against {
        Some(path) => {
            let reference = args.open_reference(path, console, options)?;
            check_same(&model, &reference, path, console)?;
            Some(reference)
        }
        None => None,
    };
    let chunk = match args.chunk {
        Some(chunk) => chunk as usize,
        None => (LOGITS_BYTES / (4 * vocab)).max(1),
    };
    let mut scorer = Scorer {
        chunk: chunk.min(model.chunk_rows()),
        left: args.limit.unwrap_or(u64::MAX),
        team: Team::new(model.threads()),
        fit: Fit::default(),
        distance: reference.is_some().then(Distance::default),
        model,
        reference,
        vocabulary: &vocabulary,
        begin: Instant::now(),
    };
    for path in &args.files {
        let source = PromptSource::open(path, console)?;
        scorer.file(source, console)?;
    }
    if scorer.fit.tokens == 0 {
        return Err(Stop::usage("the text is empty: there is no token to score"));
    }
    let report = Report::new(args, &scorer);
    let mut output = Output::stdout();
    if args.json {
        output.json(&report)?;
    } else {
        report.print(&mut output)?;
    }
    Ok(output.finish()?)
}

impl PerplexityArgs {
    fn open_reference(&self, path: &Path, console: Console, options: ModelOptions) -> Result<Model> {
        let is_pack = FileFormat::detect(path)? == FileFormat::Pack;
        let codec = self.against_codec.or((!is_pack).then_some(Codec::F32));
        ModelArgs { model: Some(path.to_owned()), codec, ..self.model.clone() }.open(console, options)
    }
}

/// Refuses a reference that is another model. Files of one model may differ, so their hashes are only mentioned.
fn check_same(model: &Model, reference: &Model, path: &Path, console: Console) -> Result<()> {
    let (ours, theirs) = (model.identity(), reference.identity());
    if ours.config() != theirs.config() {
        return Err(Stop::usage(format!(
            "--against {}: is {}; expected the model's own sizes, {}",
            path.display(),
            theirs.config(),
            ours.config()
        )));
    }
    if ours.source() != theirs.source() {
        console.warn(format_args!(
            "--against {}: was made from checkpoint {}, the model from {}: are they the same weights?",
            path.display(),
            theirs.source(),
            ours.source()
        ));
    }
    Ok(())
}

/// Feeds texts to the models, and adds up what they say.
struct Scorer<'a> {
    model: Model,
    reference: Option<Model>,
    vocabulary: &'a Vocabulary,
    team: Team,
    chunk: usize,
    /// Tokens that may still be scored.
    left: u64,
    fit: Fit,
    distance: Option<Distance>,
    begin: Instant,
}

/// The text that is being scored.
struct Document {
    state: State,
    reference_state: Option<State>,
    /// Tokens scored.
    position: u64,
}

impl Scorer<'_> {
    fn file(&mut self, mut source: PromptSource, console: Console) -> Result<()> {
        let mut document = Document {
            state: self.model.new_state(),
            reference_state: self.reference.as_ref().map(Model::new_state),
            position: 0,
        };
        let progress = match source.len {
            Some(len) => Progress::text(console, "scoring", len),
            None => Progress::spinner(console, "scoring"),
        };
        let mut encoder = self.vocabulary.stream_encoder();
        let mut buffer = vec![0; READ_BYTES];
        // What was read and not yet fed, and before it the last token that was scored.
        let mut ids = vec![END_OF_TEXT];
        let mut scored_bytes = 0;
        while self.left > 0 {
            let len = source.read(&mut buffer)?;
            let begin_of_new = ids.len();
            match len {
                0 => encoder.finish(&mut ids)?,
                _ => encoder.push(&buffer[..len], &mut ids)?,
            }
            self.vocabulary.check(&ids[begin_of_new..], self.model.config().vocab)?;
            let mut fed = 0;
            while self.left > 0 {
                let waiting = ids.len() - 1 - fed;
                if waiting == 0 || (waiting < self.chunk && len > 0) {
                    break;
                }
                let count = self.chunk.min(waiting).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                scored_bytes += self.score(&mut document, &ids[fed..=fed + count])?;
                fed += count;
                progress.set(scored_bytes);
                progress.message(self.so_far());
            }
            ids.drain(..fed);
            if len == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Feeds all of these tokens but the last, scores all but the first, and counts their bytes.
    fn score(&mut self, document: &mut Document, ids: &[u32]) -> Result<u64> {
        let (inputs, targets) = (&ids[..ids.len() - 1], &ids[1..]);
        let vocab = self.model.config().vocab;
        let step = self.model.step(&mut [Feed::new(&mut document.state, inputs, Logits::All)])?;
        let rows = step.logits(0).chunks_exact(vocab);
        let reference = match (&mut self.reference, &mut document.reference_state) {
            (Some(model), Some(state)) => {
                Some(model.step(&mut [Feed::new(state, inputs, Logits::All)]).context("--against")?)
            }
            _ => None,
        };
        let reference_row = |i: usize| reference.as_ref().map(|step| &step.logits(0)[i * vocab..][..vocab]);
        let mut scores: Vec<_> = rows
            .zip(targets)
            .enumerate()
            .map(|(i, (row, &target))| (row, reference_row(i), target, None))
            .collect();
        self.team.for_each(&mut scores, |(row, reference, target, score)| {
            *score = Some(Score::of(row, *reference, *target));
        });
        let mut bytes = 0;
        for (_, _, target, score) in scores {
            let Some(score) = score else { continue };
            let len = self.vocabulary.token_bytes(target).map_or(0, <[u8]>::len);
            self.fit.add(score.nats, len);
            if let (Some(distance), Some(comparison)) = (&mut self.distance, score.against) {
                distance.add(comparison, document.position, len);
            }
            document.position += 1;
            bytes += len as u64;
        }
        self.left -= targets.len() as u64;
        Ok(bytes)
    }

    fn so_far(&self) -> String {
        let speed = self.fit.tokens as f64 / self.begin.elapsed().as_secs_f64();
        format!("{} tokens, {speed:.0}/s, {:.4} bits per byte", self.fit.tokens, self.fit.bits_per_byte())
    }
}
