//! Every kind of fault at every phase of a model's life: the right numbers or an error that says where, no hang, and on it goes when
//! the source has recovered. And a file that is changed by others while a model runs from it.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use rwkv_cache::source::{EIO, Fault, FaultSource, Io, When};
use rwkv_cache::{ReadAhead, VerifyReads};
use rwkv_kernels::Codec;
use rwkv_model::{
    Config, ErrorKind, Feed, Logits, Model, ModelError, ModelOptions, Residency, Result, State,
};
use rwkv_pack::Pack;
use support::random::{Numbers, config};
use support::{Packed, random_pack};

/// Runs a test that could hang, and fails it instead of hanging.
fn within_a_minute<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = test();
        let _ = done.send(());
        result
    });
    match finished.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// A pack, its bytes, and what the model says.
struct Lab {
    packed: Packed,
    bytes: Vec<u8>,
    tokens: Vec<u32>,
    options: ModelOptions,
    expected: Vec<u32>,
}

/// When the faults begin.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Before the model is opened: plans need no weights, but what stays in memory is read.
    Opening,
    /// Before the first token.
    FirstSweep,
    /// After some.
    LaterSweeps,
    /// Before a prompt of several sweeps, after some tokens.
    Prefill,
}

impl Lab {
    fn new(read_ahead: ReadAhead) -> Lab {
        let config = config(3, 2, 32);
        let (_, packed) = random_pack(&config, 71, Codec::U8);
        let resident = ModelOptions::default().threads(1).chunk_rows(16);
        let budget_bytes = Model::plan(&packed.path, &resident).unwrap().smallest_budget;
        let options = resident
            .clone()
            .residency(Residency::Stream { budget_bytes })
            .read_ahead(read_ahead)
            .verify_reads(VerifyReads::Every);
        let tokens = Numbers::new(9).tokens(48, config.vocab);
        let mut model = Model::open(&packed.path, resident).unwrap();
        let expected = feed(&mut model, &tokens).unwrap();
        Lab { bytes: fs::read(&packed.path).unwrap(), packed, tokens, options, expected }
    }

    fn open(&self, source: &Arc<FaultSource<Vec<u8>>>) -> Result<Model> {
        let pack = Pack::open(&self.packed.path).expect("the manifest is read from the file");
        Model::from_source(pack, source.clone(), self.options.clone())
    }

    /// Where a group that streams is in the middle.
    fn middle_of(&self, group: &str) -> u64 {
        let pack = Pack::open(&self.packed.path).unwrap();
        let group = pack.manifest().groups.iter().find(|entry| entry.name == group).unwrap();
        group.offset + group.len / 2
    }

    /// Lets a fault strike from a phase on, and then no more. Returns the error, if there was one, and how often it struck.
    fn strike(&self, phase: Phase, when: When, fault: Fault, times: u64) -> (Option<ModelError>, u64) {
        let source = Arc::new(FaultSource::new(self.bytes.clone()));
        let inject = || source.inject_times(when, fault, times);
        if phase == Phase::Opening {
            inject();
        }
        let mut failed = None;
        let mut model = match self.open(&source) {
            Ok(model) => model,
            Err(error) => {
                assert_eq!(phase, Phase::Opening, "{error:?}");
                failed = Some(error);
                source.recover();
                self.open(&source).expect("the source has recovered")
            }
        };
        let name = format!("{phase:?} {when:?} {fault:?}");
        let mut state = model.new_state();
        match phase {
            Phase::Opening => {}
            Phase::FirstSweep => inject(),
            Phase::LaterSweeps | Phase::Prefill => {
                for token in &self.tokens[..3] {
                    step(&mut model, &mut state, std::slice::from_ref(token)).expect("nothing is wrong yet");
                }
                inject();
            }
        }
        // The whole text as a prompt of three sweeps, or token by token.
        let result = match phase {
            Phase::Prefill => feed(&mut model, &self.tokens),
            _ => {
                let mut state = model.new_state();
                let tokens = self.tokens.iter().map(std::slice::from_ref);
                let steps = tokens.map(|token| step(&mut model, &mut state, token));
                steps.collect::<Result<Vec<_>>>().map(|bits| bits.concat())
            }
        };
        match result {
            Ok(bits) => assert!(bits == self.expected, "{name}: other logits, and no error"),
            Err(error) => failed = Some(error),
        }
        source.recover();
        // A read that was under way may still fail, once.
        let again = feed(&mut model, &self.tokens).or_else(|_| feed(&mut model, &self.tokens));
        assert!(
            again.unwrap_or_else(|error| panic!("{name}: after the recovery: {error}")) == self.expected,
            "{name}"
        );
        (failed, source.struck())
    }
}

/// Feeds tokens at once; the logits after each as bits.
fn feed(model: &mut Model, tokens: &[u32]) -> Result<Vec<u32>> {
    let mut state = model.new_state();
    let step = model.step(&mut [Feed::new(&mut state, tokens, Logits::All)])?;
    Ok(step.logits(0).iter().map(|logit| logit.to_bits()).collect())
}

fn step(model: &mut Model, state: &mut State, tokens: &[u32]) -> Result<Vec<u32>> {
    let step = model.step(&mut [Feed::new(state, tokens, Logits::All)])?;
    Ok(step.logits(0).iter().map(|logit| logit.to_bits()).collect())
}

/// An error with its causes.
fn chain(error: &ModelError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

const PHASES: [Phase; 4] = [Phase::Opening, Phase::FirstSweep, Phase::LaterSweeps, Phase::Prefill];
const READ_AHEADS: [ReadAhead; 3] = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];

#[test]
fn what_is_no_error_changes_no_bit() {
    within_a_minute(|| {
        for read_ahead in READ_AHEADS {
            let lab = Lab::new(read_ahead);
            let faults = [
                (Fault::Delay(Duration::from_millis(1)), 60),
                (Fault::Short(1), 200),
                (Fault::Short(1000), u64::MAX),
                (Fault::Interrupted, 500),
            ];
            for phase in PHASES {
                for (fault, times) in faults {
                    let (failed, struck) = lab.strike(phase, When::Always, fault, times);
                    assert!(failed.is_none(), "{read_ahead} {phase:?} {fault:?}: {failed:?}");
                    assert!(struck > 0, "{read_ahead} {phase:?} {fault:?}");
                }
            }
        }
    });
}

#[test]
fn what_is_an_error_says_where_and_the_model_goes_on() {
    within_a_minute(|| {
        for read_ahead in READ_AHEADS {
            let lab = Lab::new(read_ahead);
            let streams = "blocks.1.key";
            let middle = lab.middle_of(streams);
            let faults = [
                (Fault::Os(EIO), "read failed"),
                (Fault::End, "the source ended early"),
                (Fault::WrongBytes, "its bytes have checksum"),
                (Fault::Panic, "a reader panicked"),
            ];
            for phase in PHASES {
                for (fault, part) in faults {
                    let name = format!("{read_ahead} {phase:?} {fault:?}");
                    let (failed, struck) = lab.strike(phase, When::Byte(middle), fault, u64::MAX);
                    assert!(struck > 0, "{name}");
                    let error = failed.unwrap_or_else(|| panic!("{name}: no error"));
                    assert_eq!(error.kind(), ErrorKind::Residency, "{name}");
                    let text = chain(&error);
                    assert!(text.contains(part) && text.contains(streams), "{name}: {text}");
                    // All reads, those of single rows of the embedding among them.
                    let (failed, _) = lab.strike(phase, When::Always, fault, u64::MAX);
                    let text = chain(&failed.unwrap_or_else(|| panic!("{name}: no error")));
                    assert!(text.contains(part), "{name}: {text}");
                }
            }
        }
    });
}

/// A pack as it was before groups had parts.
fn without_parts(pack: &[u8]) -> Vec<u8> {
    let len = 8 + u64::from_le_bytes(pack[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&pack[8..len]).unwrap();
    let manifest = &mut header["__metadata__"]["rwkv.pack"];
    let mut told: serde_json::Value = serde_json::from_str(manifest.as_str().unwrap()).unwrap();
    let groups = told["groups"].as_array_mut().unwrap();
    let removed = groups.iter_mut().filter_map(|group| group.as_object_mut().unwrap().remove("parts"));
    assert_eq!(removed.count(), 1, "the embedding has parts");
    *manifest = told.to_string().into();
    let mut text = header.to_string().into_bytes();
    text.resize(len - 8, b' ');
    [&pack[..8], &text, &pack[len..]].concat()
}

#[test]
fn a_wrong_row_of_the_embedding_is_found() {
    within_a_minute(|| {
        let config = Config { vocab: 1500, ..config(2, 3, 32) };
        let (_, packed) = random_pack(&config, 72, Codec::U8);
        let bytes = fs::read(&packed.path).unwrap();
        let embedding = Pack::open(&packed.path).unwrap().manifest().groups[1].clone();
        let part_len = embedding.parts.as_ref().unwrap().len as usize;
        assert!(embedding.name == "emb" && embedding.parts.unwrap().checksums.len() == 5);
        let row_bytes = 2 * config.width;
        let tokens = Numbers::new(3).tokens(40, config.vocab);
        let resident = ModelOptions::default().threads(1);
        let budget_bytes = Model::plan(&packed.path, &resident).unwrap().smallest_budget;
        let expected = feed(&mut Model::open(&packed.path, resident.clone()).unwrap(), &tokens).unwrap();
        // The row that lies in two parts, one in the middle of the third, and the last.
        let straddling = part_len / row_bytes;
        assert!(!part_len.is_multiple_of(row_bytes));
        for token in [straddling, 5 * part_len / 2 / row_bytes, config.vocab - 1] {
            let last_byte = (token + 1) * row_bytes - 1;
            let wrong = When::Byte(embedding.offset + last_byte as u64);
            let part = last_byte / part_len;
            let token = [token as u32];
            for reads in [VerifyReads::First, VerifyReads::Every] {
                let source = Arc::new(FaultSource::new(bytes.clone()));
                let options =
                    resident.clone().residency(Residency::Stream { budget_bytes }).verify_reads(reads);
                let pack = Pack::open(&packed.path).unwrap();
                let mut model = Model::from_source(pack, source.clone(), options).unwrap();
                source.inject(wrong, Fault::WrongBytes);
                let elsewhere = [(part + 2) % 5 * part_len / row_bytes + 1];
                feed(&mut model, &elsewhere.map(|token| token as u32)).expect("another part is right");
                let error = chain(&feed(&mut model, &token).expect_err("a wrong row"));
                assert!(error.contains("group emb: its bytes have checksum"), "{error}");
                // A read that is wrong once is read again.
                source.recover();
                source.inject_times(wrong, Fault::WrongBytes, 1);
                feed(&mut model, &token).expect("the second read is right");
                assert!(feed(&mut model, &tokens).unwrap() == expected);
                // Known parts are not checked again, unless that is asked for.
                source.inject(wrong, Fault::WrongBytes);
                assert_eq!(feed(&mut model, &token).is_err(), reads == VerifyReads::Every);
            }
        }
        fs::write(&packed.path, without_parts(&bytes)).unwrap();
        let mut old = streaming(&packed.path, Io::Auto);
        assert!(feed(&mut old, &tokens).unwrap() == expected, "a pack without parts runs");
    });
}

/// Opens a model that reads its file for every token.
fn streaming(path: &Path, io: Io) -> Model {
    let options = ModelOptions::default().threads(1).chunk_rows(16);
    let budget_bytes = Model::plan(path, &options).unwrap().smallest_budget;
    Model::open(path, options.residency(Residency::Stream { budget_bytes }).io(io)).unwrap()
}

#[test]
fn a_file_that_is_changed_under_a_running_model_is_an_error() {
    within_a_minute(|| {
        let lab = Lab::new(ReadAhead::Adaptive);
        let middle = lab.middle_of("blocks.1.key");
        type Change<'a> = (&'a str, &'a dyn Fn(&File));
        let changes: [Change<'_>; 3] = [
            ("cut to nothing", &|file| file.set_len(0).unwrap()),
            ("cut in the middle", &|file| file.set_len(middle).unwrap()),
            ("written to", &|file| {
                use std::io::{Seek, SeekFrom, Write};
                let mut file = file;
                file.seek(SeekFrom::Start(middle)).unwrap();
                file.write_all(b"something else").unwrap();
                // The system's clock of files may stand still for some milliseconds.
                file.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
            }),
        ];
        for io in [Io::Auto, Io::Buffered] {
            for (name, change) in &changes {
                fs::write(&lab.packed.path, &lab.bytes).unwrap();
                let mut model = streaming(&lab.packed.path, io);
                assert!(feed(&mut model, &lab.tokens).unwrap() == lab.expected);
                change(&File::options().write(true).open(&lab.packed.path).unwrap());
                // One group may have been read ahead before the change.
                let error = feed(&mut model, &lab.tokens).expect_err(name);
                assert_eq!(error.kind(), ErrorKind::Residency, "{io} {name}");
                let text = chain(&error);
                assert!(
                    ["the source ended early", "it had", "was written to"]
                        .iter()
                        .any(|part| text.contains(part)),
                    "{io} {name}: {text}"
                );
            }
        }
    });
}

#[test]
#[cfg(unix)]
fn a_file_that_is_replaced_is_still_the_one_that_was_opened() {
    within_a_minute(|| {
        let lab = Lab::new(ReadAhead::Adaptive);
        for io in [Io::Auto, Io::Buffered, Io::Mapped] {
            fs::write(&lab.packed.path, &lab.bytes).unwrap();
            let mut model = streaming(&lab.packed.path, io);
            let other = lab.packed.dir.path().join("other");
            fs::write(&other, "another model").unwrap();
            fs::rename(&other, &lab.packed.path).unwrap();
            assert!(feed(&mut model, &lab.tokens).unwrap() == lab.expected, "{io}");
        }
    });
}
