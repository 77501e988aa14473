package com.example;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import io.toolhub.v1.ArtifactHeader;
import io.toolhub.v1.ArtifactServiceGrpc;
import io.toolhub.v1.GetToolRequest;
import io.toolhub.v1.InvokeRequest;
import io.toolhub.v1.JobServiceGrpc;
import io.toolhub.v1.JobState;
import io.toolhub.v1.JobStatus;
import io.toolhub.v1.ReadArtifactRequest;
import io.toolhub.v1.SubmitJobRequest;
import io.toolhub.v1.ToolIntent;
import io.toolhub.v1.ToolResult;
import io.toolhub.v1.ToolServiceGrpc;
import io.toolhub.v1.WatchJobRequest;
import io.toolhub.v1.WriteArtifactRequest;
import io.toolhub.v1.WriteArtifactResponse;
import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * A tour of a hub, and a job followed to its end, with nothing but what grpc-java generates from the contract.
 *
 * <p>Start a hub with `make run`, then in this folder `mvn -q compile exec:java -Dexec.args=tour`, or
 * `-Dexec.args="job [ADDRESS] [TOOL] [ARGUMENTS as JSON]"`.
 */
public final class Example {
  /** Watches that may break one after another and bring nothing, before a job is given up. */
  private static final int ATTEMPTS = 100;

  private static final long PAUSE_MS = 300;
  private static final Set<JobState> FINAL =
      EnumSet.of(
          JobState.JOB_STATE_SUCCEEDED,
          JobState.JOB_STATE_FAILED,
          JobState.JOB_STATE_CANCELLED,
          JobState.JOB_STATE_TIMED_OUT,
          JobState.JOB_STATE_LOST);

  /** What a request itself is refused for; it does not pass by waiting. */
  private static final Set<Status.Code> REFUSED =
      EnumSet.of(
          Status.Code.NOT_FOUND,
          Status.Code.INVALID_ARGUMENT,
          Status.Code.PERMISSION_DENIED,
          Status.Code.UNAUTHENTICATED);

  public static void main(String[] words) throws Exception {
    // Pings notice a connection that swallows everything.
    ManagedChannel connection =
        NettyChannelBuilder.forTarget(word(words, 1, "127.0.0.1:50051"))
            .usePlaintext()
            .keepAliveTime(30, TimeUnit.SECONDS)
            .keepAliveTimeout(10, TimeUnit.SECONDS)
            .build();
    Channel hub = ClientInterceptors.intercept(connection, new Bearer(System.getenv("TOOLHUB_API_KEY")));
    try {
      if (word(words, 0, "tour").equals("job")) {
        job(hub, word(words, 2, "core/util.hash.sha256Text"), word(words, 3, "{\"text\": \"hello\"}"));
      } else {
        tour(hub);
      }
    } finally {
      connection.shutdownNow();
    }
  }

  private static String word(String[] words, int place, String otherwise) {
    return place < words.length ? words[place] : otherwise;
  }

  private static ToolIntent intent(String tool, String args, String purpose) {
    return ToolIntent.newBuilder()
        .setTool(tool)
        .setArgsJson(ByteString.copyFromUtf8(args))
        .setPurpose(purpose)
        .build();
  }

  /** A result's JSON, or what went wrong. */
  private static String told(ToolResult result) {
    if (!result.getOk()) {
      String kind = result.getError().getKind().name().replaceFirst("^ERROR_KIND_", "");
      return kind + ": " + result.getError().getMessage();
    }
    return result.getResultJson().toStringUtf8();
  }

  private static void tour(Channel hub) throws Exception {
    var tools = ToolServiceGrpc.newBlockingStub(hub);
    var hash = intent("core/util.hash.sha256Text", "{\"text\": \"\"}", "show the hub");
    System.out.println("answer: " + told(tools.invoke(InvokeRequest.newBuilder().setIntent(hash).build()).getResult()));
    var secret = intent("core/fs.readText", "{\"path\": \"../secret\"}", "show the hub");
    System.out.println("refused: " + told(tools.invoke(InvokeRequest.newBuilder().setIntent(secret).build()).getResult()));

    // An RPC that fails says why in a google.rpc.ErrorInfo.
    try {
      tools.getTool(GetToolRequest.newBuilder().setName("no/such.tool").build());
    } catch (StatusRuntimeException failed) {
      String reason = "";
      for (Any detail : StatusProto.fromThrowable(failed).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          reason = detail.unpack(ErrorInfo.class).getReason();
        }
      }
      System.out.println("missing: " + reason);
    }

    byte[] content = "0123456789".repeat(100_000).getBytes();
    byte[] back = read(hub, write(hub, content));
    System.out.println("artifact: " + back.length + " bytes, " + (Arrays.equals(content, back) ? "the same" : "others"));
  }

  /** The artifact's id. */
  private static String write(Channel hub, byte[] content) throws Exception {
    var written = new CompletableFuture<WriteArtifactResponse>();
    var parts =
        ArtifactServiceGrpc.newStub(hub)
            .writeArtifact(
                new StreamObserver<>() {
                  @Override
                  public void onNext(WriteArtifactResponse response) {
                    written.complete(response);
                  }

                  @Override
                  public void onError(Throwable failed) {
                    written.completeExceptionally(failed);
                  }

                  @Override
                  public void onCompleted() {}
                });
    var header = ArtifactHeader.newBuilder().setName("digits.txt").setSizeBytes(content.length);
    parts.onNext(WriteArtifactRequest.newBuilder().setHeader(header).build());
    for (int start = 0; start < content.length; start += 256 * 1024) {
      var chunk = ByteString.copyFrom(content, start, Math.min(256 * 1024, content.length - start));
      parts.onNext(WriteArtifactRequest.newBuilder().setChunk(chunk).build());
    }
    parts.onCompleted();
    return written.get().getArtifact().getArtifactId();
  }

  private static byte[] read(Channel hub, String artifactId) throws Exception {
    var request = ReadArtifactRequest.newBuilder().setArtifactId(artifactId).build();
    var back = new ByteArrayOutputStream();
    ArtifactServiceGrpc.newBlockingStub(hub)
        .readArtifact(request)
        .forEachRemaining(part -> back.writeBytes(part.getChunk().toByteArray()));
    return back.toByteArray();
  }

  private static void job(Channel hub, String tool, String args) throws Exception {
    var jobs = JobServiceGrpc.newBlockingStub(hub);
    var request = SubmitJobRequest.newBuilder().setIntent(intent(tool, args, "show a job")).build();
    JobStatus last = follow(jobs, jobs.submitJob(request).getJob().getJobId());
    System.out.println("answer: " + told(last.getResult()));
  }

  /**
   * Print every status to the final one. A watch that breaks is begun again after the last sequence seen, so that no
   * status is missed and none is told twice.
   */
  private static JobStatus follow(JobServiceGrpc.JobServiceBlockingStub jobs, String jobId) throws Exception {
    long seen = 0;
    for (int failed = 1; ; failed++) {
      try {
        var request = WatchJobRequest.newBuilder().setJobId(jobId).setAfterSequence(seen).build();
        for (var statuses = jobs.watchJob(request); statuses.hasNext(); failed = 0) {
          JobStatus status = statuses.next().getStatus();
          seen = status.getSequence();
          System.out.println(seen + " " + status.getState());
          if (FINAL.contains(status.getState())) {
            return status;
          }
        }
      } catch (StatusRuntimeException broken) {
        if (REFUSED.contains(broken.getStatus().getCode()) || failed >= ATTEMPTS) {
          throw broken;
        }
      }
      Thread.sleep(PAUSE_MS);
    }
  }

  /** Sends the API key, where there is one, with every RPC. */
  private record Bearer(String key) implements ClientInterceptor {
    private static final Metadata.Key<String> AUTHORIZATION =
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
      return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
        @Override
        public void start(Listener<A> listener, Metadata headers) {
          if (key != null) {
            headers.put(AUTHORIZATION, "Bearer " + key);
          }
          super.start(listener, headers);
        }
      };
    }
  }
}
