//! Parses the output of `MONITOR`.

/// Returns a command that a client sent after connecting. The parts are the address of the client, the name of the
/// command in upper case, and its arguments as shown, each in double quotes.
///
/// A line is `1339518083.107412 [0 127.0.0.1:60866] "GET" "key"`. If a script runs the command, `lua` stands in place
/// of the address, and the line does not count as a command.
#[must_use]
pub fn work(line: &str) -> Option<(&str, String, &str)> {
    let (source, command) = line.split_once("] \"")?;
    let (_, client) = source.rsplit_once(' ')?;
    let (name, args) = command.split_once('"')?;
    let name = name.to_ascii_uppercase();
    let counts = client != "lua" && !HOUSEKEEPING.contains(&name.as_str());
    counts.then_some((client, name, args.trim()))
}

/// Commands that set up connections, keep them alive or query the server about itself.
const HOUSEKEEPING: [&str; 13] = [
    "AUTH",
    "CLIENT",
    "COMMAND",
    "HELLO",
    "INFO",
    "MONITOR",
    "PING",
    "READONLY",
    "SCRIPT",
    "SELECT",
    "SUBSCRIBE",
    "TIME",
    "UNSUBSCRIBE",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_call_counts_as_one_command() {
        let line = r#"1700000000.000001 [0 127.0.0.1:60866] "evalsha" "ab" "2" "k] \"get" "l""#;
        assert_eq!(work(line), Some(("127.0.0.1:60866", "EVALSHA".to_owned(), r#""ab" "2" "k] \"get" "l""#)));
        assert_eq!(work(r#"1700000000.000002 [0 lua] "get" "k""#), None);
    }

    #[test]
    fn connection_setup_does_not_count_as_a_command() {
        assert_eq!(work(r#"1700000000.000003 [3 [::1]:60866] "client" "SETINFO" "LIB-NAME" "redis-rs""#), None);
        assert!(work(r#"1700000000.000004 [3 [::1]:60866] "get" "client""#).is_some());
    }
}
