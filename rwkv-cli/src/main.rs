//! The program `rwkv`.
fn main() {}
