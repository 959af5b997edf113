//! Filled next.
