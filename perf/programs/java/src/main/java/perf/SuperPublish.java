package perf;

import com.rabbitmq.stream.Environment;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** Sends to a super stream, each message being its own key. */
final class SuperPublish extends Worker.Publish {
  private static final int WINDOW_OF_PARTITION = 5_000;

  @Override
  public void open(Environment environment, String stream) {
    producer =
        environment.producerBuilder()
            .superStream(stream)
            .routing(message -> new String(message.getBodyAsBinary(), StandardCharsets.US_ASCII))
            .producerBuilder()
            .batchSize(Worker.BATCH)
            .maxUnconfirmedMessages(WINDOW_OF_PARTITION)
            .enqueueTimeout(Duration.ofSeconds(Worker.HANG))
            .build();
  }
}
