//! The guard in programs as people have them, each complete, so that an application can begin with a copy: a service and a
//! client of tonic, an actix-web handler, a reqwest client. A plain hyper server is among the examples, and pools of
//! connections are in [`pools`](crate::pools).

mod actix;
mod reqwest;
mod tonic;
