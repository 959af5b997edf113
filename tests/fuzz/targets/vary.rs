//! `Vary`, sent by origins and stored, and the values of the selecting header fields of requests.

use super::{append, lines};
use http::{HeaderMap, HeaderName, header::VARY};
use stampede_guard::fuzzing;

/// The input: a `Vary`, a line for each field of a request, an empty line, and another request.
pub(super) fn holds(input: &[u8]) {
    decodes_only_what_was_stored(input);
    let mut lines = lines(input);
    let vary = lines.next().unwrap_or_default();
    let (first, second) = (request(&mut lines), request(&mut lines));
    let Some(fields) = stored(vary) else { return };
    assert!(!fields.split(|byte| *byte == b',').any(|name| name == b"*"), "a star selects nothing");
    assert_eq!(stored(&vary.to_ascii_uppercase()).as_ref(), Some(&fields), "in upper case");
    let reversed: Vec<_> = vary.split(|byte| *byte == b',').rev().collect();
    assert_eq!(stored(&reversed.join(&b" ,\t,"[..])).as_ref(), Some(&fields), "from the last to the first");
    assert_eq!(fuzzing::selecting_fields(&both(vary)).as_ref(), Some(&fields), "said twice");
    tells_apart(&fields, &first, &second);
    for request in [&first, &second] {
        ignores_what_selects_nothing(&fields, request);
    }
}

/// Bytes decode only if the same `Vary` is stored as exactly these bytes.
fn decodes_only_what_was_stored(bytes: &[u8]) {
    if fuzzing::selecting_values(bytes, &HeaderMap::new()).is_some() {
        assert_eq!(stored(bytes).as_deref(), Some(bytes));
    }
}

/// Requests that differ only in white space may share a variant; requests that differ otherwise do not.
fn tells_apart(fields: &[u8], first: &HeaderMap, second: &HeaderMap) {
    let same = values(fields, first) == values(fields, second);
    let plain = |request: &HeaderMap| names(fields).map(|name| squeezed(request, &name)).collect::<Vec<_>>();
    if same {
        assert_eq!(plain(first), plain(second), "two requests are taken for one");
    }
    let exact = |request: &HeaderMap| names(fields).map(|name| said(request, &name)).collect::<Vec<_>>();
    if exact(first) == exact(second) {
        assert!(same, "one request is taken for two");
    }
}

fn ignores_what_selects_nothing(fields: &[u8], request: &HeaderMap) {
    let mut selecting = HeaderMap::new();
    for name in names(fields) {
        for line in request.get_all(&name) {
            selecting.append(name.clone(), line.clone());
        }
    }
    assert_eq!(values(fields, &selecting), values(fields, request));
    for name in names(fields).filter(|name| !request.contains_key(name)) {
        append(&mut selecting, name, b"");
        assert_ne!(values(fields, &selecting), values(fields, request), "absent is taken for empty");
    }
}

fn values(fields: &[u8], request: &HeaderMap) -> Vec<u8> {
    fuzzing::selecting_values(fields, request).expect("what was stored decodes")
}

fn stored(vary: &[u8]) -> Option<Vec<u8>> {
    let mut headers = HeaderMap::new();
    append(&mut headers, VARY, vary);
    fuzzing::selecting_fields(&headers)
}

fn both(vary: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    append(&mut headers, VARY, vary);
    append(&mut headers, VARY, vary);
    headers
}

/// Returns the names in a stored `Vary`.
fn names(fields: &[u8]) -> impl Iterator<Item = HeaderName> {
    fields.split(|byte| *byte == b',').filter_map(|name| HeaderName::from_bytes(name).ok())
}

fn said(request: &HeaderMap, name: &HeaderName) -> Vec<Vec<u8>> {
    request.get_all(name).iter().map(|line| line.as_bytes().to_vec()).collect()
}

/// Joins all lines of the field into one, without white space. Returns `None` if the field is absent.
fn squeezed(request: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines = said(request, name);
    let squeeze = |line: Vec<u8>| line.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
    (!lines.is_empty()).then(|| lines.into_iter().map(squeeze).collect::<Vec<Vec<u8>>>().join(&b','))
}

/// Reads header fields up to an empty line.
fn request<'a>(lines: &mut impl Iterator<Item = &'a [u8]>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        if let Ok(name) = HeaderName::from_bytes(&line[..colon]) {
            append(&mut headers, name, line[colon + 1..].trim_ascii());
        }
    }
    headers
}
