//! The guide: a page for each question. Documentation only; these modules contain no items. A path such as `examples/` or
//! `docs/lab` is one of the repository, and its `cargo run` needs a clone: the package has the library alone.
//!
//! | page | answers |
//! |---|---|
//! | [start] | a guarded page, a guarded value and a test in five minutes |
//! | [front_ends] | the layer, `keyed`, `fetch` or a view? |
//! | [policies] | how long is a value used? Five kinds of data, with reasons |
//! | [values] | what can be a key, what a value; codecs |
//! | [deploys] | what happens when a stored type changes, or the crate? |
//! | [testing] | how do I test my application, a leader that crashes, a Redis that is down? |
//! | [locks] | which lock for work that is not cached? |
//! | [migration] | from a `SET NX` loop, `cached`, moka with Redis, tower-http-cache |
//! | **HTTP** | |
//! | [http] | what is shared, with which clients, for how long? |
//! | [layers] | which layers belong outside of the guard, and which inside? |
//! | [uncached] | why is my page not cached? |
//! | [proxies] | nginx, a CDN or a mesh in front |
//! | [rfcs] | which parts of which RFC, and deviations |
//! | **Redis** | |
//! | [redis] | how do I connect? One server, TLS, managed services, pools |
//! | [cluster], [sentinel] | how do I connect to several servers? |
//! | [servers] | tested servers, and how they differ |
//! | [rights] | what does the user need? |
//! | [memory] | what do entries take; which eviction; the near cache |
//! | [outages] | what happens while Redis is down, full, or fails over? |
//! | **Production** | |
//! | [checklist] | what to do before production |
//! | [times] | which timeout do I set; how do I stop a process? |
//! | [observing] | metrics, busy keys, the board, alerts |
//! | [log_lines], [spans] | what is logged and traced, and what to do |
//! | [troubleshooting] | from a symptom to its cause and the setting |
//! | [guarantees] | what is promised, and what is not |
//! | [performance] | figures |
//! | [stability] | what may a release change; public dependencies; how to do without bincode? |
#![cfg(doc)]

/// Defines the module of each page. The definitions of links come first, so that they replace the definitions of the
/// page, which lead to files of the repository.
macro_rules! pages {
    ($([$page:ident])*) => {$(
        #[doc = include_str!("guide/links.md")]
        #[doc = include_str!(concat!("guide/", stringify!($page), ".md"))]
        pub mod $page {}
    )*};
}

pages! {
    [checklist] [cluster] [deploys] [front_ends] [guarantees] [http] [layers] [locks] [log_lines] [memory] [migration]
    [observing] [outages] [performance] [policies] [proxies] [redis] [rfcs] [rights] [sentinel] [servers] [spans]
    [stability] [start] [testing] [times] [troubleshooting] [uncached] [values]
}
