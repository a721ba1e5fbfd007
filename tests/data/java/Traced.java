import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.OffsetSpecification;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Carries a trace context where the client's Micrometer integration does: in an annotation. */
public final class Traced {
  public static void main(String[] arguments) throws Exception {
    String stream = arguments[1];
    try (Environment environment = Environment.builder().uri(arguments[0]).build()) {
      if (arguments.length == 2) {
        System.out.println(read(environment, stream).getMessageAnnotations().get("traceparent"));
      } else {
        publish(environment, stream, arguments[2]);
      }
    }
  }

  private static void publish(Environment environment, String stream, String parent)
      throws Exception {
    CompletableFuture<Boolean> confirmed = new CompletableFuture<>();
    try (var producer = environment.producerBuilder().stream(stream).build()) {
      Message message =
          producer
              .messageBuilder()
              .messageAnnotations()
              .entry("traceparent", parent)
              .messageBuilder()
              .addData(new byte[] {'1'})
              .build();
      producer.send(message, status -> confirmed.complete(status.isConfirmed()));
      if (!confirmed.get(60, TimeUnit.SECONDS)) {
        throw new IllegalStateException("not confirmed");
      }
    }
  }

  private static Message read(Environment environment, String stream) throws Exception {
    CompletableFuture<Message> first = new CompletableFuture<>();
    var builder = environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first());
    try (var consumer = builder.messageHandler((context, it) -> first.complete(it)).build()) {
      return first.get(60, TimeUnit.SECONDS);
    }
  }
}
