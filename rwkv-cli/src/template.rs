//! The chat template of the G1 models.
//!
//! ```text
//! System: xxx
//!
//! User: xxx
//!
//! Assistant: xxx
//!
//! User: xxx
//!
//! Assistant:
//! ```
//!
//! An empty line separates turns, so messages have none. Nothing follows `Assistant:`, not even a blank: the model's answer begins
//! with it. A model that is to think is given the beginning `<think` of its answer, without the bracket, which merges
//! with what comes next in training text.

use clap::ValueEnum;

/// What separates turns.
pub const BETWEEN: &str = "\n\n";
/// How a turn of the user begins.
const USER: &str = "User: ";
/// How an answer that follows a user's turn begins.
const ASSISTANT: &str = "\n\nAssistant:";

/// Whether the model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Think {
    /// Answer as the model likes
    Off,
    /// Think first
    On,
    /// Think first, a bit
    Short,
    /// Think first, a lot
    Long,
    /// Pretend to have thought nothing
    Skip,
}

impl Think {
    /// What is appended to the user's message.
    fn wish(self) -> &'static str {
        match self {
            Think::Short => " (think a bit)",
            Think::Long => " (think a lot)",
            _ => "",
        }
    }

    /// The beginning of the answer that the model is given.
    pub fn opening(self) -> &'static str {
        match self {
            Think::Off => "",
            Think::On | Think::Short | Think::Long => " <think",
            Think::Skip => " <think>\n</think",
        }
    }

    /// Where an answer ends, besides at the end of text. Thoughts have empty lines, answers have none.
    pub fn stop(self) -> &'static str {
        match self {
            Think::Off | Think::Skip => BETWEEN,
            _ => "\n\nUser:",
        }
    }
}

/// The system's message, as the beginning of a conversation.
pub fn system(message: &str) -> String {
    format!("System: {}{BETWEEN}", clean(message))
}

/// A message of the user, up to where the model answers.
pub fn turn(message: &str, think: Think) -> String {
    format!("{USER}{}{}{ASSISTANT}{}", clean(message), think.wish(), think.opening())
}

/// What follows an answer, whatever the user's message is.
pub fn after_answer() -> String {
    format!("{BETWEEN}{USER}")
}

/// A message without blanks at its ends, carriage returns, and empty lines.
pub fn clean(message: &str) -> String {
    let message = message.replace("\r\n", "\n");
    let mut cleaned = String::with_capacity(message.len());
    for char in message.trim().chars() {
        if char != '\n' || !cleaned.ends_with('\n') {
            cleaned.push(char);
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use rwkv_tokenizer::Tokenizer;

    use super::*;

    #[test]
    fn a_turn_has_the_tokens_of_the_template() {
        let ids = Tokenizer::world().encode(turn("hi", Think::Off));
        assert_eq!(ids, [24281, 59, 4571, 261, 5585, 41693, 59]);
    }

    #[test]
    fn a_turn_begins_with_what_follows_an_answer() {
        for think in Think::value_variants() {
            assert!(format!("{BETWEEN}{}", turn("x", *think)).starts_with(&after_answer()));
            assert!(after_answer().starts_with(think.stop()));
        }
    }

    #[test]
    fn messages_are_cleaned() {
        for (message, expected) in [
            ("hi", "hi"),
            ("  hi \n", "hi"),
            ("a\n\n\nb", "a\nb"),
            ("a\r\n\r\nb\r\n", "a\nb"),
            ("a\n \nb", "a\n \nb"),
            ("\n\n", ""),
            ("", ""),
        ] {
            assert_eq!(clean(message), expected, "{message:?}");
        }
    }

    #[test]
    fn thinking() {
        assert_eq!(turn("x", Think::On), "User: x\n\nAssistant: <think");
        assert_eq!(turn("x", Think::Short), "User: x (think a bit)\n\nAssistant: <think");
        assert_eq!(turn("x", Think::Long), "User: x (think a lot)\n\nAssistant: <think");
        assert_eq!(turn("x", Think::Skip), "User: x\n\nAssistant: <think>\n</think");
        assert_eq!(system("a\n\nb"), "System: a\nb\n\n");
    }
}
