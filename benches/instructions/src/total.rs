//! The instructions of a profile of callgrind.

use crate::callgrind;

/// Counts the instructions of this program, run again with this number of operations of one path.
pub(crate) fn count(path: &str, operations: u32, url: &str) -> u64 {
    total(&callgrind::profile(&["--dump-line=no"], &[path, &operations.to_string(), url]))
}

/// Sums the costs of all functions, except the page in which the kernel provides the time. Callgrind names that page
/// neither as an object nor as a file.
fn total(profile: &str) -> u64 {
    let (mut total, mut counts, mut of_call) = (0, true, false);
    for line in profile.lines() {
        match line.split_once('=') {
            Some(("ob", object)) => counts = is_file(object),
            Some(("calls", _)) => of_call = true,
            Some(_) => {}
            None if std::mem::take(&mut of_call) => {}
            None => {
                let mut numbers = line.split(' ').map(str::parse::<u64>);
                if let (true, Some(Ok(_)), Some(Ok(cost)), None) =
                    (counts, numbers.next(), numbers.next(), numbers.next())
                {
                    total += cost;
                }
            }
        }
    }
    total
}

fn is_file(object: &str) -> bool {
    object.starts_with('/') && !object.contains("vdso")
}
