//! What a request field means to a cache, by its name.

use super::{credentials, forwarded};

/// The meaning of a request field to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKind {
    Control,
    Pragma,
    /// RFC 9111 §4.3.2: only the origin evaluates these preconditions. An upgrade is not a response to share.
    NotForACache,
    Conditional,
    Range,
    Authorization,
    /// A cookie, or another field that tells users apart.
    Credential,
    ForwardedProto,
    /// Another field in which a proxy repeats the target or the method of the request.
    Forwarded,
    /// Nothing.
    Other,
}

/// Returns the meaning of a field with this lower-case name.
#[inline(always)]
pub(super) fn kind(name: &str) -> FieldKind {
    usual(name).unwrap_or_else(|| by_words(name))
}

/// Returns the meaning of a field that a cache goes by, or that browsers and proxies send with every request. The latter
/// are listed only to keep them from the search for words.
///
/// PERF: by length first, which makes a jump table. It takes 10 instructions for each field more than the ten names of
/// the first kind alone, and half as much as one flat `match`.
#[inline(always)]
fn usual(name: &str) -> Option<FieldKind> {
    Some(match name.len() {
        4 if name == "host" => FieldKind::Other,
        5 if name == "range" => FieldKind::Range,
        6 => match name {
            "accept" | "cf-ray" | "origin" => FieldKind::Other,
            "cookie" => FieldKind::Credential,
            "pragma" => FieldKind::Pragma,
            _ => return None,
        },
        7 => match name {
            "referer" | "sec-gpc" => FieldKind::Other,
            "upgrade" => FieldKind::NotForACache,
            _ => return None,
        },
        8 => match name {
            "cdn-loop" | "if-range" | "priority" => FieldKind::Other,
            "if-match" => FieldKind::NotForACache,
            _ => return None,
        },
        9 if matches!(name, "save-data" | "sec-ch-ua" | "x-real-ip") => FieldKind::Other,
        10 if matches!(name, "connection" | "keep-alive" | "tracestate" | "user-agent") => FieldKind::Other,
        11 if name == "traceparent" => FieldKind::Other,
        12 if matches!(name, "cf-ipcountry" | "x-request-id") => FieldKind::Other,
        13 => match name {
            "authorization" => FieldKind::Authorization,
            "cache-control" => FieldKind::Control,
            "if-none-match" => FieldKind::Conditional,
            _ => return None,
        },
        14 if matches!(name, "sec-fetch-dest" | "sec-fetch-mode" | "sec-fetch-site" | "sec-fetch-user") => {
            FieldKind::Other
        }
        15 if matches!(name, "accept-encoding" | "accept-language" | "x-amzn-trace-id" | "x-forwarded-for") => {
            FieldKind::Other
        }
        16 if matches!(name, "cf-connecting-ip" | "sec-ch-ua-mobile" | "x-correlation-id" | "x-requested-with") => {
            FieldKind::Other
        }
        17 => match name {
            "if-modified-since" => FieldKind::Conditional,
            "x-forwarded-proto" => FieldKind::ForwardedProto,
            _ => return None,
        },
        18 if matches!(name, "sec-ch-ua-platform" | "x-forwarded-server") => FieldKind::Other,
        19 if name == "if-unmodified-since" => FieldKind::NotForACache,
        25 if name == "upgrade-insecure-requests" => FieldKind::Other,
        _ => return None,
    })
}

#[cold]
fn by_words(name: &str) -> FieldKind {
    if forwarded::claim(name).is_some() {
        FieldKind::Forwarded
    } else if credentials::is_credential(name) {
        FieldKind::Credential
    } else {
        FieldKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of usual fields is a short cut only.
    #[test]
    fn usual_fields_have_no_word_of_a_credential() {
        for name in [
            "host accept cf-ray origin referer sec-gpc cdn-loop if-range priority save-data sec-ch-ua",
            "x-real-ip connection keep-alive tracestate user-agent traceparent cf-ipcountry x-request-id",
            "sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user accept-encoding accept-language",
            "x-amzn-trace-id x-forwarded-for cf-connecting-ip sec-ch-ua-mobile x-correlation-id x-requested-with",
            "sec-ch-ua-platform x-forwarded-server upgrade-insecure-requests",
        ]
        .iter()
        .flat_map(|names| names.split(' '))
        {
            assert_eq!((usual(name), by_words(name)), (Some(FieldKind::Other), FieldKind::Other), "{name}");
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_names() {
        for (name, expected) in [
            ("cache-control", FieldKind::Control),
            ("cache-contro1", FieldKind::Other),
            ("cookie", FieldKind::Credential),
            ("authorization", FieldKind::Authorization),
            ("proxy-authorization", FieldKind::Credential),
            ("x-forwarded-proto", FieldKind::ForwardedProto),
            ("x-forwarded-host", FieldKind::Forwarded),
            ("x-forwarded-user", FieldKind::Credential),
            ("if-unmodified-since", FieldKind::NotForACache),
            ("range", FieldKind::Range),
            ("", FieldKind::Other),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }
}
