use crate::error::Result;
use crate::stop::StopMatcher;

/// The text of generated tokens on its way out.
#[derive(Debug)]
pub(crate) struct Text {
    matcher: StopMatcher,
    bytes: Vec<u8>,
    released: Vec<u8>,
}

impl Text {
    /// # Errors
    /// A stop string is empty.
    pub fn new(stop_strings: &[Vec<u8>]) -> Result<Text> {
        Ok(Text { matcher: StopMatcher::new(stop_strings)?, bytes: Vec::new(), released: Vec::new() })
    }

    /// Leaves in `released` what the token sets free; returns the stop string that it completes.
    pub fn push(&mut self, token: u32, token_bytes: &dyn Fn(u32, &mut Vec<u8>)) -> Option<usize> {
        self.bytes.clear();
        self.released.clear();
        token_bytes(token, &mut self.bytes);
        self.matcher.push(&self.bytes, &mut self.released)
    }

    /// Leaves in `released` what is still held back; whether there is anything.
    pub fn finish(&mut self) -> bool {
        self.released.clear();
        self.matcher.finish(&mut self.released);
        !self.released.is_empty()
    }

    pub fn released(&self) -> &[u8] {
        &self.released
    }
}
