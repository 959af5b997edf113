//! What the fields of requests mean to a cache, by their names.

use http::HeaderName;
use std::{collections::HashMap, sync::LazyLock};

/// The meaning of a request field to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum FieldKind {
    /// `Cache-Control`, or `Pragma`.
    Control,
    Upgrade,
    Conditional,
    Range,
    Authorization,
    Cookie,
    ProxyAuthorization,
    ForwardedProto,
    /// Another field in which a proxy repeats this part of the request.
    Forwarded(Claim),
    /// It may differ between requests that share a response.
    Harmless,
    /// It may tell users apart.
    Other,
}

/// The part of a request that a field repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Claim {
    Authority,
    /// Path and query.
    Target,
    /// The path, with or without the query.
    Path,
    /// A part of the path that a proxy has removed. An application prepends it to links, so a prefix that the path still
    /// has would break them.
    Prefix,
    Port,
    Scheme,
    /// `on` for `https`.
    Tls,
    Method,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// Returns the kind of a field.
#[inline(always)]
pub(in crate::http) fn kind(name: &HeaderName) -> FieldKind {
    match name.as_str() {
        name if is_usual(name) => FieldKind::Harmless,
        "x-forwarded-proto" => FieldKind::ForwardedProto,
        name => unusual(name),
    }
}

/// Reports whether browsers and proxies send a harmless field of this name with every request.
///
/// PERF: a lookup takes 120 instructions for each field more. By length first, which makes a jump table: half of what one
/// flat `matches` takes. Names of one length are compared in this order, usual ones first.
#[inline(always)]
fn is_usual(name: &str) -> bool {
    match name.len() {
        4 => name == "host",
        6 => matches!(name, "accept" | "cf-ray" | "origin"),
        7 => matches!(name, "referer" | "sec-gpc"),
        8 => matches!(name, "priority" | "cdn-loop"),
        9 => matches!(name, "x-real-ip" | "sec-ch-ua" | "save-data"),
        10 => matches!(name, "user-agent" | "connection" | "tracestate" | "keep-alive"),
        11 => name == "traceparent",
        12 => matches!(name, "x-request-id" | "cf-ipcountry"),
        14 => matches!(name, "sec-fetch-site" | "sec-fetch-mode" | "sec-fetch-dest" | "sec-fetch-user"),
        15 => matches!(name, "accept-encoding" | "accept-language" | "x-forwarded-for" | "x-amzn-trace-id"),
        16 => matches!(name, "cf-connecting-ip" | "sec-ch-ua-mobile" | "x-correlation-id" | "x-requested-with"),
        18 => matches!(name, "sec-ch-ua-platform" | "x-forwarded-server"),
        25 => name == "upgrade-insecure-requests",
        _ => false,
    }
}

#[cold]
fn unusual(name: &str) -> FieldKind {
    static KINDS: LazyLock<HashMap<&str, FieldKind>> = LazyLock::new(|| kinds().collect());
    match KINDS.get(name) {
        Some(kind) => *kind,
        None if name.starts_with("sec-") || name.starts_with("x-b3-") => FieldKind::Harmless,
        None => FieldKind::Other,
    }
}

/// Returns the names of `request_fields.txt`, with the kind of their section.
fn kinds() -> impl Iterator<Item = (&'static str, FieldKind)> {
    let sections = include_str!("request_fields.txt").split("\n= ").skip(1);
    sections.filter_map(|section| section.split_once('\n')).flat_map(|(section, lines)| {
        let names = lines.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_ascii_whitespace);
        names.map(move |name| (name, kind_of(section)))
    })
}

fn kind_of(section: &str) -> FieldKind {
    match section {
        "control" | "pragma" => FieldKind::Control,
        "upgrade" => FieldKind::Upgrade,
        "conditional" => FieldKind::Conditional,
        "range" => FieldKind::Range,
        "authorization" => FieldKind::Authorization,
        "cookie" => FieldKind::Cookie,
        "proxy authorization" => FieldKind::ProxyAuthorization,
        "scheme of the key" => FieldKind::ForwardedProto,
        "forwarded" => FieldKind::Forwarded(Claim::Forwarded),
        "authority" => FieldKind::Forwarded(Claim::Authority),
        "target" => FieldKind::Forwarded(Claim::Target),
        "path" => FieldKind::Forwarded(Claim::Path),
        "prefix" => FieldKind::Forwarded(Claim::Prefix),
        "port" => FieldKind::Forwarded(Claim::Port),
        "scheme" => FieldKind::Forwarded(Claim::Scheme),
        "tls" => FieldKind::Forwarded(Claim::Tls),
        "method" => FieldKind::Forwarded(Claim::Method),
        _ => FieldKind::Harmless,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> FieldKind {
        super::kind(&HeaderName::from_bytes(name.as_bytes()).expect("a name"))
    }

    /// Some are found without the file.
    #[test]
    fn each_name_of_the_file_is_found_in_its_section() {
        for (name, expected) in kinds() {
            assert_eq!(kind(name), expected, "{name}");
        }
        assert_eq!(kinds().filter(|(_, kind)| *kind != FieldKind::Harmless).count(), 54);
    }

    #[test]
    fn fields_are_found_by_their_whole_names() {
        for (name, expected) in [
            ("cache-control", FieldKind::Control),
            ("cache-contro1", FieldKind::Other),
            ("proxy-authorization", FieldKind::ProxyAuthorization),
            ("proxy-authorisation", FieldKind::Other),
            ("x-forwarded-proto", FieldKind::ForwardedProto),
            ("x-forwarded-host", FieldKind::Forwarded(Claim::Authority)),
            ("x-forwarded-user", FieldKind::Other),
            ("x-http-method-override", FieldKind::Forwarded(Claim::Method)),
            ("x-http-mXthod-override", FieldKind::Other),
            ("sec-ch-unheard-of", FieldKind::Harmless),
            ("x-envoy-attempt-count", FieldKind::Harmless),
            ("te", FieldKind::Harmless),
            ("et", FieldKind::Other),
            ("x", FieldKind::Other),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }
}
