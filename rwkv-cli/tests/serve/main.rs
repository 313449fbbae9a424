//! `rwkv serve`, over real connections.

#[path = "../support/mod.rs"]
mod support;

mod chat;
mod clients;
mod completions;
mod engine;
mod guard;
mod http;
mod lifetime;
mod others;
mod requests;
mod server;
mod states;
mod streams;
