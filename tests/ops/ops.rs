//! The boards, the alerts and the live page, against a real Prometheus and a real browser.

mod boards;
mod page;
