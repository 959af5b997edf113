//! The guide: a page for each question. Documentation only; these modules contain no items.
//!
//! | page | answers |
//! |---|---|
//! | [times] | which timeout to set; how to stop a process |
//! | [deploys] | what a rolling deploy shares; a stored type that changes; an upgrade |
//! | **HTTP** | |
//! | [layers] | which layers belong outside of the guard, and which inside |
//! | [uncached] | why a page is not cached |
//! | [proxies] | nginx, a CDN or a mesh in front |
//! | **Redis** | |
//! | [redis] | how to connect: one server, TLS, managed services, pools |
//! | [cluster], [sentinel] | how to connect to several servers |
//! | [servers] | tested servers, and how they differ |
//! | [rights] | the ACL of the user |
//! | [memory] | what entries take; eviction; the near cache |
//! | [outages] | what happens while Redis is down, full, or fails over |
//! | **Production** | |
//! | [observing] | metrics, busy keys, the dashboard, alerts |
//! | [log_lines], [spans] | what is logged and traced, and what to do |
//! | [locks] | locks for other work |
//! | [performance] | figures |

#![cfg(doc)]

/// Defines the module of each page. The definitions of links come first, so that they replace those of the page, which
/// lead to files of the repository.
macro_rules! pages {
    ($([$page:ident])*) => {$(
        #[doc = include_str!("guide/links.md")]
        #[doc = include_str!(concat!("guide/", stringify!($page), ".md"))]
        pub mod $page {}
    )*};
}

pages! {
    [cluster] [deploys] [layers] [locks] [log_lines] [memory] [observing] [outages] [performance] [proxies] [redis]
    [rights] [sentinel] [servers] [spans] [times] [uncached]
}
