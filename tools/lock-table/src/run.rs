//! The parent: starts servers and clients, and prints the table.

use crate::{
    Result,
    args::{Args, Duty},
    bare, cell, picture,
    table::{self, Table},
};
use example_support::RedisServer;

/// Runs all measurements. Returns `true` if no two clients held the lock at the same time.
pub(crate) async fn run(args: &Args) -> Result<bool> {
    let rows = args.recipes();
    let own = match args.redis {
        None => Some(RedisServer::start().await?),
        Some(_) => None,
    };
    let mut others = Vec::new();
    for _ in 0..rows.iter().map(|row| row.others()).max().unwrap_or_default() {
        others.push(RedisServer::start().await?);
    }
    let redis = args.redis.clone().or_else(|| own.as_ref().map(|own| own.url.clone())).unwrap_or_default();
    let mut server = bare::connect(&redis::Client::open(&*redis)?).await?;
    let directory = tempfile::tempdir()?;
    let (run, mut table) = (fastrand::u32(..), Table::new(args.lasts()));
    for &clients in &args.clients {
        for row in &rows {
            let duty = Duty {
                recipe: row.name.to_owned(),
                // A separate name, so that no key of an earlier measurement is left.
                lock: format!("{run:08x}-{}", table.rows.len()),
                redis: redis.clone(),
                others: others.iter().map(|other| other.url.clone()).collect(),
                lasts: args.lasts(),
                delay: args.delay(),
                oracle: directory.path().join("oracle"),
            };
            table.add(row, clients, cell::measure(row, clients, &duty, &mut server).await?);
        }
        table::print_book(clients);
    }
    if let Some(path) = &args.svg {
        picture::draw(path, &table.lines())?;
    }
    if args.json {
        println!("{}", table.json());
    }
    Ok(table.holds())
}
