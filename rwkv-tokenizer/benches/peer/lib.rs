//! The bench `compare` is all that there is here.
