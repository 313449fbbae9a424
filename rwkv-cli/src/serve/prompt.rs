//! Prompts: texts or tokens of a request.

use serde_json::Value;

use super::app::Loaded;
use super::error::ApiError;
use super::fields::wrong;

/// The token that a document begins with.
const BEGIN_OF_DOCUMENT: u32 = rwkv_tokenizer::END_OF_TEXT;

/// A text or a list of tokens, as a request gives it.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Reads one prompt or several: a string, a list of strings, a list of tokens, or a list of lists of tokens.
    ///
    /// # Errors
    /// 400: it is something else, or an empty list.
    pub fn read_all(value: Value, param: &str) -> Result<Vec<Prompt>, ApiError> {
        const EXPECTED: &str = "a string, a list of strings, a list of tokens, or a list of lists of tokens";
        match value {
            Value::String(text) => Ok(vec![Prompt::Text(text)]),
            Value::Array(list) if list.is_empty() => {
                Err(ApiError::field(param, format!("{param} is an empty list; expected {EXPECTED}")))
            }
            Value::Array(list) if list[0].is_number() => Ok(vec![tokens(list, param)?]),
            Value::Array(list) => {
                let one = |(index, value)| match value {
                    Value::String(text) => Ok(Prompt::Text(text)),
                    Value::Array(list) => tokens(list, &format!("{param}[{index}]")),
                    other => Err(wrong(format!("{param}[{index}]"), &other, "a string or a list of tokens")),
                };
                list.into_iter().enumerate().map(one).collect()
            }
            other => Err(wrong(param.to_owned(), &other, EXPECTED)),
        }
    }

    /// The tokens, checked against the model's vocabulary.
    ///
    /// # Errors
    /// 400: the model does not have one of them.
    pub fn tokens(&self, loaded: &Loaded, param: &str) -> Result<Vec<u32>, ApiError> {
        let ids = match self {
            Prompt::Text(text) => loaded.encode(text, param)?,
            Prompt::Tokens(ids) => ids.clone(),
        };
        let vocab = loaded.scheduler.config().vocab;
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => {
                let message = format!("{param} has token {id}; expected tokens below {vocab}");
                Err(ApiError::field(param, message))
            }
            None => Ok(ids),
        }
    }
}

/// The tokens of a text that goes on from nothing: never none, as a model needs something to go on from.
pub fn from_the_beginning(ids: Vec<u32>) -> Vec<u32> {
    if ids.is_empty() { vec![BEGIN_OF_DOCUMENT] } else { ids }
}

fn tokens(list: Vec<Value>, param: &str) -> Result<Prompt, ApiError> {
    let one = |(index, value): (usize, Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(format!("{param}[{index}]"), &value, "a token"))
    };
    Ok(Prompt::Tokens(list.into_iter().enumerate().map(one).collect::<Result<_, _>>()?))
}
