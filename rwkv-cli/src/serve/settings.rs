//! What requests for text have in common: how tokens are chosen, where the text ends, how it is sent.

use rwkv_model::SamplerParams;
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::states::StateName;

/// The most choices of a request, over all its prompts.
pub const MOST_CHOICES: u64 = 64;
/// The most stop strings of a request.
pub const MOST_STOPS: usize = 16;
/// The most bytes of a stop string.
pub const MOST_STOP_BYTES: usize = 256;
/// The most alternatives of a token.
pub const MOST_LOGPROBS: u64 = 20;
/// The most entries of `logit_bias`.
const MOST_BIASES: usize = 1024;

/// How text is generated and sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How tokens are chosen.
    pub params: SamplerParams,
    /// The most tokens.
    pub max_tokens: Option<usize>,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// Choices for each prompt.
    pub n: usize,
    /// Whether the text is sent as it comes.
    pub stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub include_usage: bool,
    /// The state to start from.
    pub state: Option<StateName>,
    /// Where to keep the state at the end.
    pub save_state: Option<StateName>,
}

impl Settings {
    /// Takes the fields. Parameters of the choice that are not given are those of `base`.
    ///
    /// # Errors
    /// 400: a value is out of its range.
    pub fn take(fields: &mut Fields, base: SamplerParams, vocab: usize) -> Result<Settings, ApiError> {
        let params = SamplerParams {
            temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(base.temperature),
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(base.top_p),
            top_k: fields.integer("top_k", 0..=u64::from(u32::MAX))?.map_or(base.top_k, |k| k as usize),
            presence: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(base.presence),
            frequency: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(base.frequency),
            decay: fields.number("penalty_decay", 0.0..=1.0)?.unwrap_or(base.decay),
            seed: fields.seed("seed")?,
            logit_bias: logit_bias(fields, vocab)?,
            banned: Vec::new(),
        };
        let most = fields.integer("max_tokens", 0..=u64::MAX)?;
        let max_tokens = fields.integer("max_completion_tokens", 0..=u64::MAX)?.or(most);
        let stream = fields.flag("stream")?.unwrap_or(false);
        let include_usage = match fields.object("stream_options")? {
            Some(_) if !stream => {
                return Err(ApiError::field("stream_options", "stream_options is only for stream: true"));
            }
            Some(mut options) => options.flag("include_usage")?.unwrap_or(false),
            None => false,
        };
        // Who asks is of no consequence, but must be said correctly.
        fields.text("user")?;
        fields.text("model")?;
        let n = fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1) as usize;
        let save_state = StateName::take(fields, "save_state")?;
        if save_state.is_some() && n > 1 {
            return Err(ApiError::field("save_state", "save_state is only for one choice; expected n: 1"));
        }
        Ok(Settings {
            params,
            max_tokens: max_tokens.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            stop: stop(fields)?,
            n,
            stream,
            include_usage,
            state: StateName::take(fields, "state")?,
            save_state,
        })
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let (stops, is_list) = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => (vec![Value::String(stop)], false),
        Some(Value::Array(stops)) => (stops, true),
        Some(other) => return Err(wrong("stop".into(), &other, "a string or a list of strings")),
    };
    if stops.len() > MOST_STOPS {
        let message = format!("stop has {} strings; expected at most {MOST_STOPS}", stops.len());
        return Err(ApiError::field("stop", message));
    }
    let check = |(index, stop)| match stop {
        Value::String(stop) if (1..=MOST_STOP_BYTES).contains(&stop.len()) => Ok(stop),
        other => {
            let expected = format!("a string of 1 to {MOST_STOP_BYTES} bytes");
            let path = if is_list { format!("stop[{index}]") } else { "stop".to_owned() };
            Err(wrong(path, &other, &expected))
        }
    };
    stops.into_iter().enumerate().map(check).collect()
}

fn logit_bias(fields: &mut Fields, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(object) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let mut biases = Vec::new();
    for (id, value) in object.into_entries() {
        let token = id.parse().ok().filter(|&token: &u32| (token as usize) < vocab).ok_or_else(|| {
            let id = Value::String(id.clone());
            wrong("logit_bias".into(), &id, &format!("token ids below {vocab} as its names"))
        })?;
        let bias = value
            .as_f64()
            .filter(|bias| (-100.0..=100.0).contains(bias))
            .ok_or_else(|| wrong(format!("logit_bias.{id}"), &value, "a number from -100 to 100"))?;
        biases.push((token, bias as f32));
    }
    if biases.len() > MOST_BIASES {
        let message = format!("logit_bias has {} tokens; expected at most {MOST_BIASES}", biases.len());
        return Err(ApiError::field("logit_bias", message));
    }
    Ok(biases)
}
