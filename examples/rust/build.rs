//! Generates messages and clients from the contract.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    let services = ["tool", "job", "artifact"].map(|name| format!("toolhub/v1/{name}_service.proto"));
    let contract = protox::compile(services, ["../../proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(contract)?;
    Ok(())
}
