//! From requests that were checked to the response: one JSON object, or server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rwkv_model::{Finished, Request};
use serde_json::{Value, json};

use super::app::App;
use super::choice::{Choice, Piece, finish_reason};
use super::error::ApiError;
use super::scored::Scored;
use super::sessions::Sessions;
use super::states::StateName;
use super::text::Characters;
use crate::session::{Session, Tail};
use crate::vocabulary::Vocabulary;

/// What the answers of an endpoint look like.
pub trait Shape: Send + Sync + 'static {
    /// How ids begin.
    const ID: &'static str;
    /// The `object` of an answer.
    const OBJECT: &'static str;
    /// The `object` of a part of an answer.
    const CHUNK: &'static str;

    /// What has taken the bytes before a choice: its first character may have begun there.
    fn begun(&self, _choice: usize) -> Characters {
        Characters::default()
    }
    /// What a stream says of a choice before its text.
    fn opening(&self, choice: usize) -> Option<Value>;
    /// What a stream says of a choice: text, tokens that were scored, and how it ended.
    fn part(&self, text: &str, scored: &[Scored], is_last: bool) -> Value;
    /// What is said of a whole choice.
    fn whole(&self, choice: usize, whole: Whole, vocabulary: &Vocabulary) -> Value;
}

/// A choice that has come to its end.
pub struct Whole {
    /// Its text.
    pub text: String,
    /// Its tokens, if they were scored.
    pub scored: Vec<Scored>,
    /// How it ended.
    pub end: Box<Finished>,
}

/// What is to be answered.
pub struct Plan<S> {
    /// What the answer looks like.
    pub shape: S,
    /// One for each choice.
    pub requests: Vec<Request>,
    /// Choices for each prompt.
    pub n: usize,
    /// Whether blanks at the beginning of an answer are left out.
    pub skips_blanks: bool,
    /// Whether the text is sent as it comes.
    pub stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub include_usage: bool,
    /// Where the state at the end is to be kept.
    pub save_state: Option<StateName>,
}

impl<S: Shape> Plan<S> {
    /// Carries it out.
    ///
    /// # Errors
    /// Whatever is found out before the first byte is sent.
    pub async fn answer(mut self, app: App) -> Result<Response, ApiError> {
        let loaded = app.loaded()?;
        let begun = (0..self.requests.len()).map(|choice| self.shape.begun(choice));
        let choices = begun.map(|characters| Choice::new(self.skips_blanks, characters)).collect();
        let requests = std::mem::take(&mut self.requests);
        let mut sessions = Sessions::submit(loaded, app.metrics(), requests)?;
        sessions.begin().await?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let keep_alive = app.args().limits.keep_alive;
        let id = app.new_id(S::ID);
        let model = loaded.name.clone();
        let stream = self.stream;
        let run = Run { app, plan: self, sessions, choices, id, created, model, usage: Usage::default() };
        if stream {
            let events = stream::unfold(Sending::new(run), async |mut sending| {
                sending.next().await.map(|event| (Ok::<_, Infallible>(event), sending))
            });
            Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive)).into_response())
        } else {
            Ok(Json(run.whole().await?).into_response())
        }
    }
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
}

impl Usage {
    fn add(&mut self, end: &Finished, is_first_of_prompt: bool) {
        if is_first_of_prompt {
            self.prompt += end.prompt_tokens;
            self.cached += end.reused_tokens;
        }
        self.completion += end.completion_tokens;
    }

    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// Sessions whose answers are on their way.
struct Run<S> {
    app: App,
    plan: Plan<S>,
    sessions: Sessions,
    choices: Vec<Choice>,
    id: String,
    created: u64,
    model: String,
    usage: Usage,
}

impl<S: Shape> Run<S> {
    /// What the next event adds, and to which choice; `None` once all have ended.
    async fn next(&mut self) -> Result<Option<(usize, Piece)>, ApiError> {
        let Some((index, event)) = self.sessions.next().await? else { return Ok(None) };
        let loaded = self.app.loaded()?;
        let piece = self.choices[index].take(event, &loaded.vocabulary);
        if let Some(end) = &piece.end {
            self.usage.add(end, index % self.plan.n == 0);
        }
        Ok(Some((index, piece)))
    }

    /// Keeps the state at the end, if that was asked for.
    async fn save(&self, index: usize, end: &mut Finished) -> Result<Option<Value>, ApiError> {
        let (Some(name), Some(state)) = (self.plan.save_state.clone(), end.state.take()) else {
            return Ok(None);
        };
        let choice = &self.choices[index];
        let vocabulary = &self.app.loaded()?.vocabulary;
        let tail = Tail::of_answer(choice.tokens(), end.unfed, choice.visible_bytes(), vocabulary)
            .map_err(|error| ApiError::internal(format!("the state has no end: {error:#}")))?;
        let session = Session { state, tail };
        let states = Arc::clone(self.app.states()?);
        super::blocking(move || states.save(&name, &session)).await.map(Some)
    }

    /// The answer in one piece.
    async fn whole(mut self) -> Result<Value, ApiError> {
        let mut done: Vec<Option<Value>> = self.choices.iter().map(|_| None).collect();
        let mut texts: Vec<(String, Vec<Scored>)> = self.choices.iter().map(|_| Default::default()).collect();
        let mut saved = None;
        while let Some((index, piece)) = self.next().await? {
            texts[index].0.push_str(&piece.text);
            texts[index].1.extend(piece.scored);
            if let Some(mut end) = piece.end {
                saved = self.save(index, &mut end).await?;
                let (text, scored) = std::mem::take(&mut texts[index]);
                let whole = Whole { text, scored, end };
                done[index] = Some(self.plan.shape.whole(index, whole, &self.app.loaded()?.vocabulary));
            }
        }
        let mut answer = self.envelope(S::OBJECT);
        answer["choices"] = Value::Array(done.into_iter().flatten().collect());
        answer["usage"] = self.usage.to_json();
        if let Some(saved) = saved {
            answer["state"] = saved;
        }
        Ok(answer)
    }

    fn envelope(&self, object: &str) -> Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model })
    }

    fn chunk(&self, index: usize, mut part: Value, finish: Option<&str>) -> Value {
        part["index"] = json!(index);
        part["finish_reason"] = json!(finish);
        if part.get("logprobs").is_none() {
            part["logprobs"] = Value::Null;
        }
        let mut chunk = self.envelope(S::CHUNK);
        chunk["choices"] = json!([part]);
        if self.plan.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

/// A stream of answers.
struct Sending<S> {
    run: Run<S>,
    /// What is to be sent before anything else is waited for.
    ready: VecDeque<Event>,
    is_done: bool,
}

impl<S: Shape> Sending<S> {
    fn new(run: Run<S>) -> Sending<S> {
        let openings = (0..run.choices.len()).filter_map(|index| {
            let part = run.plan.shape.opening(index)?;
            Some(data(&run.chunk(index, part, None)))
        });
        Sending { ready: openings.collect(), run, is_done: false }
    }

    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() && !self.is_done {
            if let Err(error) = self.advance().await {
                // The answer is 200 already: this is how the client learns of it.
                self.ready.push_back(data(&error.to_json()));
                self.is_done = true;
            }
        }
        self.ready.pop_front()
    }

    async fn advance(&mut self) -> Result<(), ApiError> {
        let Some((index, piece)) = self.run.next().await? else {
            if self.run.plan.include_usage {
                let mut chunk = self.run.envelope(S::CHUNK);
                chunk["choices"] = json!([]);
                chunk["usage"] = self.run.usage.to_json();
                self.ready.push_back(data(&chunk));
            }
            self.ready.push_back(Event::default().data("[DONE]"));
            self.is_done = true;
            return Ok(());
        };
        if !piece.text.is_empty() || !piece.scored.is_empty() {
            let part = self.run.plan.shape.part(&piece.text, &piece.scored, false);
            self.ready.push_back(data(&self.run.chunk(index, part, None)));
        }
        if let Some(mut end) = piece.end {
            let saved = self.run.save(index, &mut end).await?;
            let part = self.run.plan.shape.part("", &[], true);
            let mut chunk = self.run.chunk(index, part, Some(finish_reason(end.reason)));
            if let Some(saved) = saved {
                chunk["state"] = saved;
            }
            self.ready.push_back(data(&chunk));
        }
        Ok(())
    }
}

fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}
