//! A session of the demonstration: a text that goes on and on.

use rwkv_model::{Feed, Logits, Model, Result, Sampler, SamplerParams, State};
use rwkv_tokenizer::END_OF_TEXT;
use serde::Serialize;

use crate::vocabulary::Vocabulary;

/// What the sessions begin with.
const OPENINGS: [&str; 4] = [
    "A state remembers what it reads; weights do not. A state",
    "Open the door, then close the door, then open the",
    "Once upon a time there was a small house by the sea, and in the house",
    "The layers are read one after another. The first layer",
];
/// A text starts anew after so many tokens.
const LONGEST: usize = 240;
/// Bytes of the text that are shown.
const SHOWN_BYTES: usize = 280;
/// Likely tokens that are shown.
const LIKELY: usize = 8;

/// A session.
#[derive(Debug)]
pub struct Session {
    prompt: Vec<u32>,
    opening: &'static str,
    state: State,
    sampler: Sampler,
    next: u32,
    tokens: usize,
    text: Vec<u8>,
    likely: Vec<Likely>,
}

/// A token and how likely it was to come next.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Likely {
    pub id: u32,
    pub text: String,
    pub probability: f32,
}

/// What the page shows of a session.
#[derive(Debug, Serialize)]
pub struct Report {
    pub opening: &'static str,
    pub text: String,
    pub tokens: usize,
    /// What the last logits said before one was drawn.
    pub likely: Vec<Likely>,
    pub chosen: u32,
}

impl Session {
    /// The session of this number, whose prompt was read.
    pub fn new(number: usize, model: &mut Model, vocabulary: &Vocabulary) -> Result<Session> {
        let opening = OPENINGS[number % OPENINGS.len()];
        let vocab = model.config().vocab;
        // A vocabulary that is not the model's has ids that the model lacks.
        let mut prompt = vocabulary.encode(opening);
        prompt.retain(|&id| (id as usize) < vocab);
        if prompt.is_empty() {
            prompt.push(END_OF_TEXT);
        }
        let params = SamplerParams { seed: Some(number as u64), ..SamplerParams::default() };
        let mut session = Session {
            prompt,
            opening,
            state: model.new_state(),
            sampler: Sampler::new(params, vocab)?,
            next: END_OF_TEXT,
            tokens: 0,
            text: Vec::new(),
            likely: Vec::new(),
        };
        session.read_prompt(model)?;
        Ok(session)
    }

    fn read_prompt(&mut self, model: &mut Model) -> Result<()> {
        self.state.reset();
        self.text.clear();
        self.tokens = 0;
        let output = model.step(&mut [Feed::new(&mut self.state, &self.prompt, Logits::Last)])?;
        self.next = self.sampler.sample(output.logits(0))?;
        self.sampler.accept(self.next);
        Ok(())
    }

    /// The session's state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The text so far.
    pub fn report(&self) -> Report {
        let Session { opening, tokens, next, .. } = *self;
        Report {
            opening,
            text: tail(&self.text, SHOWN_BYTES),
            tokens,
            likely: self.likely.clone(),
            chosen: next,
        }
    }

    fn take(&mut self, logits: &[f32], vocabulary: &Vocabulary, look: bool) -> Result<()> {
        vocabulary.append(self.next, &mut self.text);
        self.tokens += 1;
        self.next = self.sampler.sample(logits)?;
        self.sampler.accept(self.next);
        if look {
            self.likely = likely(logits, vocabulary);
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.next == END_OF_TEXT || self.tokens >= LONGEST
    }
}

/// One token more for every session, in one sweep. Texts that have ended begin again. With `look` the likeliest
/// tokens are noted.
pub fn pass(model: &mut Model, sessions: &mut [Session], vocabulary: &Vocabulary, look: bool) -> Result<()> {
    for session in sessions.iter_mut().filter(|session| session.has_ended()) {
        session.read_prompt(model)?;
    }
    let next: Vec<[u32; 1]> = sessions.iter().map(|session| [session.next]).collect();
    let feed = |(session, token)| -> Feed<'_> {
        let session: &mut Session = session;
        let token: &[u32; 1] = token;
        Feed::new(&mut session.state, token, Logits::Last)
    };
    let mut feeds: Vec<Feed<'_>> = sessions.iter_mut().zip(&next).map(feed).collect();
    let output = model.step(&mut feeds)?;
    for (index, session) in sessions.iter_mut().enumerate() {
        session.take(output.logits(index), vocabulary, look)?;
    }
    Ok(())
}

/// The likeliest tokens, by the softmax of all logits.
fn likely(logits: &[f32], vocabulary: &Vocabulary) -> Vec<Likely> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - most).exp())).sum();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]);
    let count = LIKELY.min(ids.len());
    if count < ids.len() {
        ids.select_nth_unstable_by(count, by_logit);
    }
    ids.truncate(count);
    ids.sort_by(by_logit);
    let of = |id: u32| Likely {
        id,
        text: String::from_utf8_lossy(&vocabulary.text(&[id])).into_owned(),
        probability: (f64::from((logits[id as usize] - most).exp()) / sum) as f32,
    };
    ids.into_iter().map(of).collect()
}

/// The end of a text, in whole characters; what may be the beginning of a character is left out.
fn tail(text: &[u8], most: usize) -> String {
    let mut begin = text.len().saturating_sub(most);
    while begin < text.len() && text[begin] & 0b1100_0000 == 0b1000_0000 {
        begin += 1;
    }
    let mut shown = String::new();
    let mut chunks = text[begin..].utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        shown.push_str(chunk.valid());
        if !chunk.invalid().is_empty() && chunks.peek().is_some() {
            shown.push(char::REPLACEMENT_CHARACTER);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_has_whole_characters() {
        for (text, most, expected) in [
            (&b"abc"[..], 10, "abc"),
            (b"abc", 2, "bc"),
            ("aäb".as_bytes(), 2, "b"),
            ("aäb".as_bytes(), 3, "äb"),
            (b"a\xc3", 10, "a"),
            (b"a\xffb", 10, "a\u{fffd}b"),
            (b"", 10, ""),
        ] {
            assert_eq!(tail(text, most), expected, "{text:?} {most}");
        }
    }

    #[test]
    fn the_likeliest_come_first_and_have_their_share() {
        let vocabulary = Vocabulary::world();
        let mut logits = vec![0.0; 1000];
        logits[66] = 9.0;
        logits[67] = 10.0;
        let found = likely(&logits, &vocabulary);
        assert_eq!(found.len(), LIKELY);
        assert_eq!((found[0].id, found[1].id), (67, 66));
        assert_eq!(found[0].text, "B");
        let sum = 1f64 + (-1f64).exp() + 998.0 * (-10f64).exp();
        assert!((f64::from(found[0].probability) - 1.0 / sum).abs() < 1e-6, "{found:?}");
        assert_eq!(likely(&[1.0, 2.0], &vocabulary).len(), 2);
    }
}
