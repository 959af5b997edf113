//! `Cache-Control`: any bytes in any number of lines, and lines whose meaning is known.

use super::{append, lines};
use http::{HeaderMap, StatusCode, header::CACHE_CONTROL};
use stampede_guard::fuzzing;
use std::time::{Duration, UNIX_EPOCH};

pub(super) fn hold(input: &[u8]) {
    let written: Vec<&[u8]> = lines(input).collect();
    let headers = field(&written);
    let meant = fuzzing::directives(&headers);
    let same = |other: &[Vec<u8>], how: &str| {
        assert_eq!(fuzzing::directives(&field(other)), meant, "{how}");
    };
    let each = |change: fn(&[u8]) -> Vec<u8>| written.iter().map(|line| change(line)).collect::<Vec<_>>();
    same(&each(<[u8]>::to_ascii_uppercase), "in upper case");
    same(&each(<[u8]>::to_ascii_lowercase), "in lower case");
    same(&written.iter().rev().map(|line| line.to_vec()).collect::<Vec<_>>(), "from the last line to the first");
    same(&[each(<[u8]>::to_vec), each(<[u8]>::to_vec)].concat(), "everything said twice");
    for line in valid(&written) {
        let longer = [line, b",no-store"].concat();
        if members(&longer).is_none() {
            assert_eq!(fuzzing::may_answer(&field(&[longer])), None, "an open quote hides a directive");
        }
    }
    if valid(&written).iter().all(|line| members(line).is_some()) {
        let members: Vec<_> = valid(&written).iter().filter_map(|line| members(line)).flatten().collect();
        same(&members, "each on a line of its own");
        same(&[members.join(&b","[..])], "all on one line");
        same(&[members.join(&b" ,\t ,"[..])], "with space and empty members between");
    }
    forbids(&headers);
    means_what_it_says(input);
}

/// A directive on a line of its own applies, whatever the other lines contain, including open quotes.
fn forbids(headers: &HeaderMap) {
    let ok = StatusCode::OK;
    let seconds = fuzzing::may_store(ok, headers, UNIX_EPOCH).flatten().unwrap_or_default();
    assert!(seconds <= Duration::from_secs(1 << 31));
    let and = |directive: &str| {
        let mut headers = headers.clone();
        append(&mut headers, CACHE_CONTROL, directive.as_bytes());
        headers
    };
    let forbids = |status, directive| {
        assert_eq!(fuzzing::may_store(status, &and(directive), UNIX_EPOCH), None, "{directive}");
    };
    for directive in ["private", "No-Cache", "private=\"a, b\"", "max-age=0, s-maxage=0", "s-maxage=-1"] {
        forbids(ok, directive);
    }
    // RFC 9111 §5.2.2.3: beside must-understand, no-store applies only to caches that do not know the status.
    let understood = fuzzing::directives(&and("must-understand")) == fuzzing::directives(headers);
    if !understood {
        forbids(ok, "no-store");
    }
    forbids(unknown(), "no-store");
    forbids(unknown(), "must-understand");
    assert_eq!(fuzzing::may_answer(&and("no-store")), None);
}

/// A status code that no cache understands.
fn unknown() -> StatusCode {
    StatusCode::from_u16(299).expect("a status")
}

/// A line made of known directives, one for each byte, must be read as intended.
fn means_what_it_says(input: &[u8]) {
    let (mut said, mut no_store, mut private, mut understood) = (Vec::new(), false, false, false);
    let (mut max_age, mut s_maxage, mut revalidate) = (None, None, None);
    let shorter = |known: Option<u64>, said: u64| Some(known.map_or(said, |known| known.min(said)));
    for byte in input.iter().take(12) {
        let seconds = u64::from(byte / 12);
        said.push(match byte % 12 {
            0 => "ext=\"no-store, \\\", private\"".to_owned(),
            1 => "public".to_owned(),
            2 => "no-store-please=1".to_owned(),
            3 => {
                understood |= seconds == 0;
                ["must-understand", ""][usize::from(seconds != 0)].to_owned()
            }
            4 => {
                s_maxage = shorter(s_maxage, seconds);
                format!("s-maxage=\"{seconds}\"")
            }
            5 => {
                no_store |= seconds == 0;
                ["no-store", "x"][usize::from(seconds != 0)].to_owned()
            }
            6 => {
                private |= seconds == 1;
                ["private=\"set-cookie, x\"", "x=y"][usize::from(seconds != 1)].to_owned()
            }
            7 => {
                revalidate = shorter(revalidate, seconds);
                format!("stale-while-revalidate={seconds}")
            }
            _ => {
                max_age = shorter(max_age, seconds);
                format!("Max-Age = {seconds} ")
            }
        });
    }
    let lifetime = s_maxage.or(max_age);
    // RFC 5861 §3: stale-while-revalidate makes a response without freshness useful, unless an s-maxage forbids it (RFC
    // 9111 §5.2.2.10).
    let useful_stale = s_maxage.is_none() && revalidate.is_some_and(|window| window > 0);
    let expected = match lifetime {
        _ if private || (no_store && !understood) => None,
        Some(0) if !useful_stale => None,
        lifetime => Some(lifetime.map(Duration::from_secs)),
    };
    let headers = field(&[said.join(",")]);
    assert_eq!(fuzzing::may_store(StatusCode::OK, &headers, UNIX_EPOCH), expected, "{said:?}");
}

fn field(lines: &[impl AsRef<[u8]>]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        append(&mut headers, CACHE_CONTROL, line.as_ref());
    }
    headers
}

/// Returns the lines that a header field can contain.
fn valid<'a>(lines: &[&'a [u8]]) -> Vec<&'a [u8]> {
    lines.iter().copied().filter(|line| http::HeaderValue::from_bytes(line).is_ok()).collect()
}

/// Splits the line at its commas outside of quotes. Returns `None` if a quote is left open.
fn members(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut members, mut rest) = (vec![Vec::new()], line.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b',' => members.push(Vec::new()),
            b'"' => {
                let member = members.last_mut()?;
                member.push(b'"');
                loop {
                    let byte = *rest.next()?;
                    member.push(byte);
                    match byte {
                        b'"' => break,
                        b'\\' => member.push(*rest.next()?),
                        _ => {}
                    }
                }
            }
            _ => members.last_mut()?.push(*byte),
        }
    }
    Some(members)
}
