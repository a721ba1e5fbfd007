package perf;

import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Reads a stream or a super stream as a member of a group; the client stores its offsets. */
final class Group implements Worker.Work {
  private final boolean isSuper;
  private Environment environment;
  private String stream;
  private Consumer consumer;
  private List<Object> messages = new ArrayList<>(); // since the last report

  Group(boolean isSuper) {
    this.isSuper = isSuper;
  }

  @Override
  public void open(Environment environment, String stream) {
    this.environment = environment;
    this.stream = stream;
  }

  void join(String name) {
    ConsumerBuilder builder = environment.consumerBuilder();
    builder = isSuper ? builder.superStream(stream) : builder.stream(stream);
    consumer =
        builder
            .name(name)
            .singleActiveConsumer()
            .offset(OffsetSpecification.first())
            .autoTrackingStrategy()
            .builder()
            .messageHandler(
                (context, message) -> {
                  String body = new String(message.getBodyAsBinary(), StandardCharsets.US_ASCII);
                  synchronized (this) {
                    double now = System.nanoTime() / 1e9; // CLOCK_MONOTONIC on Linux
                    messages.add(List.of(now, context.stream(), context.offset(), body));
                  }
                })
            .build();
  }

  synchronized Map<String, Object> report() {
    List<Object> found = messages;
    messages = new ArrayList<>();
    return Map.of("messages", found);
  }

  void leave() {
    consumer.close();
  }

  @Override
  public void prepare(int count) {}

  @Override
  public long run() {
    throw new IllegalStateException(
        "a member of a group is not measured: use join, report and leave");
  }

  @Override
  public void finish() {}

  @Override
  public void close() {}
}
