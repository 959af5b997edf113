//! The live page of `axum_app` in a real browser.
