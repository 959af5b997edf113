//! The guard among layers and protocols of other crates: the rows of src/guide/layers.md, HTTP/2, gRPC, WebSocket and pools; codecs.
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

mod access;
mod bodies;
mod codecs;
mod grpc;
mod guide;
mod integrations;
mod kit;
mod limits;
mod observation;
mod otel;
mod pools;
mod sockets;
