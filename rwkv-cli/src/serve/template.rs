//! From messages to the text that the model goes on from.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, context};

use super::error::ApiError;
use super::messages::{Message, Role};
use crate::exit::Stop;
use crate::template::{self, BETWEEN, Think};

/// Steps that a template may take for a request; a loop over the messages takes a few dozen for each.
const FUEL: u64 = 1_000_000;
/// The name of the one template.
const NAME: &str = "chat";

/// How messages become text.
#[derive(Debug)]
pub enum ChatTemplate {
    /// The format of the G1 models, see [`template`].
    G1,
    /// A file of the user's, in the language of the templates on Hugging Face.
    File(Box<Environment<'static>>),
}

impl ChatTemplate {
    /// Reads a template file, and tries it.
    ///
    /// # Errors
    /// It cannot be read, or is no template.
    pub fn from_path(path: &Path) -> Result<ChatTemplate> {
        let shown = path.display();
        let source =
            fs::read_to_string(path).with_context(|| format!("--template {shown}: cannot be read"))?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| Stop::usage(format!("--template {shown}: {error}")))?;
        Ok(ChatTemplate::File(Box::new(environment)))
    }

    /// The text. If the last message is the assistant's, the model goes on with it; else it answers.
    ///
    /// # Errors
    /// 400: the template refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String, ApiError> {
        match self {
            ChatTemplate::G1 => Ok(g1(messages)),
            ChatTemplate::File(environment) => {
                let refused = |error: Error| {
                    ApiError::field("messages", format!("the chat template refuses the messages: {error}"))
                };
                let template = environment.get_template(NAME).map_err(refused)?;
                let add_generation_prompt = !continues(messages);
                template
                    .render(context! { messages, add_generation_prompt, bos_token => "", eos_token => "" })
                    .map_err(refused)
            }
        }
    }

    /// Where an answer ends, if nobody says otherwise.
    pub fn stops(&self) -> Vec<String> {
        match self {
            ChatTemplate::G1 => vec![Think::Off.stop().to_owned()],
            ChatTemplate::File(_) => Vec::new(),
        }
    }
}

/// Whether the model is to go on with the last message.
pub fn continues(messages: &[Message]) -> bool {
    messages.last().is_some_and(|last| last.role == Role::Assistant)
}

fn g1(messages: &[Message]) -> String {
    let turn = |message: &Message| {
        let name = match message.role {
            Role::System => "System:",
            Role::User => "User:",
            Role::Assistant => "Assistant:",
        };
        // Nothing, not even a blank, follows the colon of an empty turn.
        match template::clean(&message.content) {
            content if content.is_empty() => name.to_owned(),
            content => format!("{name} {content}"),
        }
    };
    let mut turns: Vec<String> = messages.iter().map(turn).collect();
    if !continues(messages) {
        turns.push("Assistant:".to_owned());
    }
    turns.join(BETWEEN)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(list: &[(Role, &str)]) -> Vec<Message> {
        list.iter().map(|&(role, content)| Message { role, content: content.to_owned() }).collect()
    }

    #[test]
    fn g1_is_what_the_models_know() {
        use Role::{Assistant, System, User};
        for (list, expected) in [
            (&[(User, "hi")][..], "User: hi\n\nAssistant:"),
            (&[(System, "Be brief."), (User, " hi\n")], "System: Be brief.\n\nUser: hi\n\nAssistant:"),
            (
                &[(User, "hi"), (Assistant, " Hello.\n\n"), (User, "a\n\n\nb")],
                "User: hi\n\nAssistant: Hello.\n\nUser: a\nb\n\nAssistant:",
            ),
            (&[(User, "hi"), (Assistant, "")], "User: hi\n\nAssistant:"),
            (&[(User, "hi"), (Assistant, "Hel")], "User: hi\n\nAssistant: Hel"),
            (&[(User, "")], "User:\n\nAssistant:"),
            (&[(System, "x")], "System: x\n\nAssistant:"),
        ] {
            assert_eq!(ChatTemplate::G1.render(&messages(list)), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn files_speak_the_language_of_hugging_face() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let source = "{% for m in messages %}\n\
            {% if m['role'] == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}\n\
            <{{ m.role }}>{{ m['content'].strip() }}\n\
            {% endfor %}\n\
            {% if add_generation_prompt %}<assistant>{% endif %}";
        fs::write(file.path(), source).expect("a file");
        let template = ChatTemplate::from_path(file.path()).expect("a template");
        let found = template.render(&messages(&[(Role::System, "x"), (Role::User, " y ")]));
        assert_eq!(found, Ok("<system>x\n<user>y\n<assistant>".to_owned()));
        let error = template.render(&messages(&[(Role::User, "y"), (Role::System, "x")])).unwrap_err();
        let message = error.to_json()["error"]["message"].to_string();
        assert!(message.contains("system comes first"), "{message}");

        fs::write(file.path(), "{% for m in messages %}").expect("a file");
        let error = ChatTemplate::from_path(file.path()).unwrap_err().to_string();
        assert!(error.starts_with("--template "), "{error}");

        fs::write(
            file.path(),
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        )
        .expect("a file");
        let endless = ChatTemplate::from_path(file.path()).expect("a template");
        assert!(endless.render(&messages(&[(Role::User, "y")])).is_err(), "it runs out of fuel");
    }
}
