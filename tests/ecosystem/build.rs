//! Generates the service of `integrations/tonic.rs` as a program would from its `.proto` file, but without `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let rate = Method::builder()
        .name("rate")
        .route_name("Rate")
        .input_type("super::RateRequest")
        .output_type("super::Rate")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let rates = Service::builder().name("Rates").package("bank").method(rate).build();
    Builder::new().compile(&[rates]);
}
