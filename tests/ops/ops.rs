//! The boards, the alerts and the live page, against a real Prometheus and a real browser.
#![allow(clippy::disallowed_methods, reason = "tests make their own time")]

mod app;
mod boards;
mod browser;
mod client;
mod demo;
mod page;
mod programs;
mod prometheus;
mod webdriver;
