//! A tour of a hub, and a job followed to its end, with nothing but what tonic generates from the contract.
//!
//! Start a hub with `make run`, then in this folder:
//!
//!     cargo run -- tour [ADDRESS]
//!     cargo run -- job [ADDRESS] [TOOL] [ARGUMENTS as JSON]

use std::env;
use std::error::Error;
use std::time::Duration;

use tonic::metadata::AsciiMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use toolhub::artifact_service_client::ArtifactServiceClient;
use toolhub::invoke_response::Outcome;
use toolhub::job_service_client::JobServiceClient;
use toolhub::read_artifact_response::Part as Read;
use toolhub::tool_intent::Args;
use toolhub::tool_result::Result as Value;
use toolhub::tool_service_client::ToolServiceClient;
use toolhub::write_artifact_request::Part as Write;
use toolhub::{
    ArtifactHeader, ErrorKind, GetToolRequest, InvokeRequest, JobState, JobStatus, ReadArtifactRequest,
    SubmitJobRequest, ToolIntent, ToolResult, WatchJobRequest, WriteArtifactRequest,
};

mod toolhub {
    tonic::include_proto!("toolhub.v1");
}

type Failure = Box<dyn Error>;

/// Watches that may break one after another and bring nothing, before a job is given up.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(300);

/// A channel whose every RPC carries the key of TOOLHUB_API_KEY, where there is one.
type Hub = InterceptedService<Channel, Bearer>;

#[derive(Clone)]
struct Bearer(Option<AsciiMetadataValue>);

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("authorization", key.clone());
        }
        Ok(request)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = env::args().skip(1).collect();
    let word = |place: usize, otherwise: &str| words.get(place).cloned().unwrap_or_else(|| otherwise.into());
    let address = word(1, "127.0.0.1:50051");
    // Pings notice a connection that swallows everything.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(Duration::from_secs(10))
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10));
    let key = match env::var("TOOLHUB_API_KEY") {
        Ok(key) => Some(format!("Bearer {key}").parse()?),
        Err(_) => None,
    };
    let hub = InterceptedService::new(endpoint.connect_lazy(), Bearer(key));
    match word(0, "tour").as_str() {
        "job" => job(hub, &word(2, "core/util.hash.sha256Text"), &word(3, r#"{"text": "hello"}"#)).await,
        _ => tour(hub).await,
    }
}

fn intent(tool: &str, args: &str, purpose: &str) -> Option<ToolIntent> {
    Some(ToolIntent {
        tool: tool.into(),
        args: Some(Args::ArgsJson(args.as_bytes().to_vec())),
        purpose: purpose.into(),
        ..Default::default()
    })
}

/// A result's JSON, or what went wrong.
fn told(result: ToolResult) -> String {
    match (result.error, result.result) {
        (Some(error), _) => {
            let kind = ErrorKind::try_from(error.kind).unwrap_or_default().as_str_name();
            format!("{}: {}", kind.trim_start_matches("ERROR_KIND_"), error.message)
        }
        (None, Some(Value::ResultJson(json))) => String::from_utf8_lossy(&json).into_owned(),
        (None, other) => format!("{other:?}"),
    }
}

async fn tour(hub: Hub) -> Result<(), Failure> {
    let mut tools = ToolServiceClient::new(hub.clone());
    for (what, tool, args) in [
        ("answer", "core/util.hash.sha256Text", r#"{"text": ""}"#),
        ("refused", "core/fs.readText", r#"{"path": "../secret"}"#),
    ] {
        let request = InvokeRequest { intent: intent(tool, args, "show the hub"), ..Default::default() };
        if let Some(Outcome::Result(result)) = tools.invoke(request).await?.into_inner().outcome {
            println!("{what}: {}", told(result));
        }
    }

    // An RPC that fails says why in a google.rpc.ErrorInfo.
    match tools.get_tool(GetToolRequest { name: "no/such.tool".into(), ..Default::default() }).await {
        Ok(_) => println!("missing: nothing"),
        Err(status) => {
            let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
            println!("missing: {reason}");
        }
    }

    let mut artifacts = ArtifactServiceClient::new(hub);
    let content = b"0123456789".repeat(100_000);
    let header = ArtifactHeader { name: "digits.txt".into(), size_bytes: content.len() as i64, ..Default::default() };
    let mut parts = vec![WriteArtifactRequest { part: Some(Write::Header(header)) }];
    parts.extend(
        content.chunks(256 * 1024).map(|chunk| WriteArtifactRequest { part: Some(Write::Chunk(chunk.into())) }),
    );
    let written = artifacts.write_artifact(tokio_stream::iter(parts)).await?.into_inner();
    let artifact = written.artifact.ok_or("the hub answered an upload without an artifact")?;
    let request = ReadArtifactRequest { artifact_id: artifact.artifact_id, ..Default::default() };
    let mut stream = artifacts.read_artifact(request).await?.into_inner();
    let mut back = Vec::new();
    while let Some(message) = stream.message().await? {
        if let Some(Read::Chunk(chunk)) = message.part {
            back.extend(chunk);
        }
    }
    println!("artifact: {} bytes, {}", back.len(), if back == content { "the same" } else { "others" });
    Ok(())
}

async fn job(hub: Hub, tool: &str, args: &str) -> Result<(), Failure> {
    let mut jobs = JobServiceClient::new(hub);
    let request = SubmitJobRequest { intent: intent(tool, args, "show a job"), ..Default::default() };
    let job = jobs.submit_job(request).await?.into_inner().job.ok_or("the hub answered without a job")?;
    let last = follow(&mut jobs, &job.job_id).await?;
    println!("answer: {}", last.result.map(told).unwrap_or_default());
    Ok(())
}

/// Print every status to the final one. A watch that breaks is begun again after the last sequence seen, so that no status
/// is missed and none is told twice.
async fn follow(jobs: &mut JobServiceClient<Hub>, job_id: &str) -> Result<JobStatus, Failure> {
    let (mut seen, mut failed) = (0, 0);
    loop {
        let request = WatchJobRequest { job_id: job_id.into(), after_sequence: seen, ..Default::default() };
        let broken = match jobs.watch_job(request).await {
            Err(status) => status,
            Ok(response) => {
                let mut stream = response.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(message)) => {
                            let status = message.status.unwrap_or_default();
                            (seen, failed) = (status.sequence, 0);
                            println!("{seen} {}", status.state().as_str_name());
                            if is_final(status.state()) {
                                return Ok(status);
                            }
                        }
                        Ok(None) => break Status::unavailable("the watch ended before the job"),
                        Err(status) => break status,
                    }
                }
            }
        };
        failed += 1;
        // What the request itself is refused for, such as NOT_FOUND, does not pass by waiting.
        let passes = !matches!(broken.code(), Code::NotFound | Code::InvalidArgument | Code::PermissionDenied);
        if !passes || broken.code() == Code::Unauthenticated || failed >= ATTEMPTS {
            return Err(broken.into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn is_final(state: JobState) -> bool {
    use JobState::{Cancelled, Failed, Lost, Succeeded, TimedOut};
    matches!(state, Succeeded | Failed | Cancelled | TimedOut | Lost)
}
