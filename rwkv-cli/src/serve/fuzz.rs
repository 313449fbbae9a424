//! Whatever a request is, it is taken, with all its values in range, or refused with a 4xx; nothing panics.

use axum::response::IntoResponse;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use rwkv_model::{Sampler, SamplerParams};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::messages::Message;
use super::prompt::Prompt;
use super::settings::{MOST_CHOICES, MOST_STOP_BYTES, MOST_STOPS, Settings};
use super::template::ChatTemplate;

const VOCAB: usize = 272;
const NAMES: [&str; 28] = [
    "messages",
    "prompt",
    "role",
    "content",
    "type",
    "text",
    "temperature",
    "top_p",
    "top_k",
    "presence_penalty",
    "frequency_penalty",
    "penalty_decay",
    "seed",
    "stop",
    "logit_bias",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "include_usage",
    "state",
    "save_state",
    "user",
    "model",
    "tool_calls",
    "0",
    "271",
];
const WORDS: [&str; 9] =
    ["user", "system", "assistant", "developer", "tool", "text", "image_url", "", "\u{0}\r\n\n\n"];

fn name() -> impl Strategy<Value = String> {
    prop_oneof![9 => select(&NAMES[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-5i64..300).prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        (0.0..2.0f64).prop_map(|number| json!(number)),
        select(&WORDS[..]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            btree_map(name(), inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn request() -> impl Strategy<Value = Value> {
    btree_map(name(), value(), 0..10).prop_map(|map| Value::Object(Map::from_iter(map)))
}

fn taken<T>(result: Result<T, ApiError>) -> Option<T> {
    match result {
        Ok(taken) => Some(taken),
        Err(error) => {
            let json = error.to_json();
            assert!(json["error"]["message"].as_str().is_some_and(|message| message.len() < 1000), "{json}");
            assert!(error.into_response().status().is_client_error(), "{json}");
            None
        }
    }
}

fn read(fields: &Fields) {
    if let Some(settings) = taken(Settings::take(&mut fields.clone(), SamplerParams::chat(), VOCAB)) {
        Sampler::new(settings.params.clone(), VOCAB).expect("the engine takes what the server takes");
        assert!((1..=MOST_CHOICES as usize).contains(&settings.n));
        assert!(settings.stop.len() <= MOST_STOPS);
        assert!(settings.stop.iter().all(|stop| (1..=MOST_STOP_BYTES).contains(&stop.len())));
        assert!(!settings.include_usage || settings.stream);
    }
    if let Some(messages) = taken(Message::take_all(&mut fields.clone())) {
        let text = ChatTemplate::G1.render(&messages).expect("this format refuses nothing");
        assert!(text.contains("Assistant:"));
    }
    if let Some(prompt) = fields.clone().take("prompt") {
        taken(Prompt::read_all(prompt, "prompt"));
    }
}

proptest! {
    #[test]
    fn any_object(request in request()) {
        let fields = Fields::parse(request.to_string().as_bytes()).expect("it is an object");
        read(&fields);
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        if let Some(fields) = taken(Fields::parse(&bytes)) {
            read(&fields);
        }
    }

    #[test]
    fn any_slip(request in request(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = request.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        if let Some(fields) = taken(Fields::parse(&bytes)) {
            read(&fields);
        }
    }
}
