package perf;

import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

/** Reads all partitions from the first message, with new consumers in each run. */
final class SuperConsume implements Worker.Work {
  private Environment environment;
  private String stream;
  private int count;
  private Consumer consumer;
  private final AtomicLong wrong = new AtomicLong(); // messages not above the last of the partition

  @Override
  public void open(Environment environment, String stream) {
    this.environment = environment;
    this.stream = stream;
  }

  @Override
  public void prepare(int count) {
    this.count = count;
  }

  @Override
  public long run() throws Exception {
    AtomicLong received = new AtomicLong();
    CountDownLatch ended = new CountDownLatch(1);
    Map<String, byte[]> last = new ConcurrentHashMap<>();
    wrong.set(0);
    consumer =
        environment.consumerBuilder()
            .superStream(stream)
            .offset(OffsetSpecification.first())
            .flow()
            .initialCredits(Worker.CREDITS)
            .builder()
            .messageHandler(
                (context, message) -> {
                  byte[] body = message.getBodyAsBinary();
                  byte[] before = last.put(context.stream(), body);
                  if (before != null && Arrays.compare(body, before) <= 0) {
                    wrong.incrementAndGet();
                  }
                  if (received.incrementAndGet() == count) {
                    ended.countDown();
                  }
                })
            .build();
    Worker.await(ended, received, count);
    return Math.min(received.get(), count);
  }

  @Override
  public void finish() {
    consumer.close();
    if (wrong.get() > 0) {
      throw new IllegalStateException(wrong.get() + " messages are out of order");
    }
  }

  @Override
  public void close() {}
}
