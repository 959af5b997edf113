//! Invalidation of stored responses by unsafe requests (RFC 9111 §4.4).

use http::{
    HeaderMap, StatusCode, Uri, header,
    uri::{Authority, PathAndQuery},
};

/// Reports whether this status of a response to an unsafe request invalidates the target: 2xx and 3xx do.
pub(in crate::http) fn invalidates(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

/// Returns the other resources to invalidate: `Location` and `Content-Location`, resolved as in RFC 3986 §5.2. Only
/// resources of the target's own origin are returned, because no origin may invalidate responses of another.
pub(in crate::http) fn also(target: &Uri, answer: &HeaderMap) -> Vec<PathAndQuery> {
    let (Some(scheme), Some(authority)) = (target.scheme_str(), target.authority()) else { return Vec::new() };
    let fields = [header::LOCATION, header::CONTENT_LOCATION];
    let lines = fields.iter().flat_map(|field| answer.get_all(field));
    let resolved = lines.filter_map(|line| {
        let reference = line.to_str().ok()?;
        // RFC 3986 §3.5: only the client interprets a fragment.
        resolve(scheme, authority, target.path(), reference.split('#').next()?.trim_ascii())
    });
    resolved.collect()
}

fn resolve(scheme: &str, authority: &Authority, path: &str, reference: &str) -> Option<PathAndQuery> {
    // RFC 3986 §4.2: a colon before the first slash ends a scheme.
    let head = reference.split(['/', '?']).next()?;
    let absolute = if head.contains(':') {
        Some(reference.parse::<Uri>().ok()?)
    } else if reference.starts_with("//") {
        Some(format!("{scheme}:{reference}").parse().ok()?)
    } else {
        None
    };
    if let Some(uri) = &absolute {
        let theirs = uri.authority()?;
        let same = uri.scheme_str()?.eq_ignore_ascii_case(scheme)
            && theirs.host().eq_ignore_ascii_case(authority.host())
            && port(theirs, scheme) == port(authority, scheme);
        return if same { without_dots(uri.path(), uri.query()) } else { None };
    }
    let (to, query) = match reference.split_once('?') {
        Some((to, query)) => (to, Some(query)),
        None => (reference, None),
    };
    if reference.is_empty() {
        // An empty reference is the target itself.
        None
    } else if to.is_empty() {
        without_dots(path, query)
    } else if to.starts_with('/') {
        without_dots(to, query)
    } else {
        let directory = path.rfind('/').map_or("/", |last| &path[..=last]);
        without_dots(&format!("{directory}{to}"), query)
    }
}

fn port(authority: &Authority, scheme: &str) -> Option<u16> {
    let default = || match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    authority.port_u16().or_else(default)
}

/// Removes dot segments (RFC 3986 §5.2.4).
fn without_dots(path: &str, query: Option<&str>) -> Option<PathAndQuery> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => _ = kept.pop(),
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{}{query}", kept.join("/")).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{
        super::kit::{headers, status},
        *,
    };
    use proptest::prelude::*;

    fn resolved(reference: &str) -> Option<String> {
        let answer = headers(&[("location", reference)]);
        let also = also(&Uri::from_static("http://h.example/a/b/c"), &answer);
        also.first().map(PathAndQuery::to_string)
    }

    /// RFC 9111 §4.4.
    #[test]
    fn response_without_error_invalidates() {
        for (code, expected) in
            [(200, true), (204, true), (201, true), (303, true), (304, true), (400, false), (412, false), (500, false)]
        {
            assert_eq!(invalidates(status(code)), expected, "{code}");
        }
    }

    #[test]
    fn location_and_content_location_are_invalidated() {
        let answer = headers(&[("location", "/x"), ("content-location", "/y?z"), ("link", "/no")]);
        let also = also(&Uri::from_static("http://h/"), &answer);
        assert_eq!(also, ["/x", "/y?z"]);
    }

    /// RFC 3986 §5.4, with `http://h.example/a/b/c` as the base.
    #[test]
    fn location_references_are_resolved() {
        for (reference, expected) in [
            ("/x", "/x"),
            ("/x?y#z", "/x?y"),
            ("/x/../y", "/y"),
            ("x", "/a/b/x"),
            ("./x", "/a/b/x"),
            ("x/", "/a/b/x/"),
            ("../x", "/a/x"),
            ("..", "/a/"),
            (".", "/a/b/"),
            ("../../..", "/"),
            ("../../../../x", "/x"),
            ("?q", "/a/b/c?q"),
            ("?q=/../x:y", "/a/b/c?q=/../x:y"),
            ("x?y/../z", "/a/b/x?y/../z"),
            ("//H.example/x", "/x"),
            ("http://h.example/x?y", "/x?y"),
            ("HTTP://H.Example:80/x", "/x"),
            ("http://h.example", "/"),
            ("http://user@h.example/x", "/x"),
        ] {
            assert_eq!(resolved(reference).as_deref(), Some(expected), "{reference}");
        }
    }

    #[test]
    fn location_of_another_origin_is_not_invalidated() {
        for reference in [
            "https://h.example/x",
            "http://h.example:8080/x",
            "http://other/x",
            "//other/x",
            "http://h.example.other/x",
            "http://h.example@other/x",
            "mailto:x@h.example",
            "",
            "#z",
        ] {
            assert_eq!(resolved(reference), None, "{reference}");
        }
    }

    proptest! {
        #[test]
        fn location_resolves_to_a_path_without_dot_segments(reference in "[a:/.?#%@ -~]{0,24}") {
            if let Some(path) = resolved(&reference) {
                let path = path.split('?').next().expect("a path");
                prop_assert!(path.starts_with('/'));
                prop_assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{}", path);
            }
        }
    }
}
