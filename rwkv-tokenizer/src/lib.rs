//! Placeholder until the crate's own first commit.
