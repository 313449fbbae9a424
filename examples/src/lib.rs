//! Runnable examples of the rwkv crates; see the programs beside this file.
