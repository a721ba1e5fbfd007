package perf;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.rabbitmq.stream.ConfirmationHandler;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.StreamDoesNotExistException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;

/** A benchmark worker that uses the official Java client; see perf/programs/__init__.py. */
public final class Worker {
  static final int WINDOW = 10_000;
  static final int BATCH = 100; // the client's default; it adapts the size to the load
  static final int CREDITS = 10; // chunks; the client's default, renewed one by one
  static final long HANG = 60; // seconds without any message or confirm, before the worker fails

  /** A kind of work; only run is timed. */
  interface Work extends AutoCloseable {
    void open(Environment environment, String stream);

    void prepare(int count);

    long run() throws Exception;

    void finish();

    @Override
    void close();
  }

  static byte[] numbered(long number) {
    return String.format("%010d", number).getBytes(StandardCharsets.US_ASCII);
  }

  /** Waits for the latch while the counter advances. */
  static void await(CountDownLatch latch, AtomicLong counter, long count) throws Exception {
    long before = -1;
    while (!latch.await(HANG, TimeUnit.SECONDS)) {
      if (counter.get() == before) {
        throw new TimeoutException("only " + before + " of " + count + " messages");
      }
      before = counter.get();
    }
  }

  /** Sends messages with at most WINDOW of them in flight. */
  static class Publish implements Work {
    Producer producer;
    private byte[][] bodies;
    private final AtomicLong confirmed = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();

    @Override
    public void open(Environment environment, String stream) {
      producer =
          environment.producerBuilder()
              .stream(stream)
              .batchSize(BATCH)
              .maxUnconfirmedMessages(WINDOW)
              .enqueueTimeout(Duration.ofSeconds(HANG))
              .build();
    }

    @Override
    public void prepare(int count) {
      bodies = new byte[count][];
      for (int i = 0; i < count; i++) {
        bodies[i] = numbered(i);
      }
    }

    @Override
    public long run() throws Exception {
      long count = bodies.length;
      confirmed.set(0);
      CountDownLatch all = new CountDownLatch(1);
      ConfirmationHandler handler =
          status -> {
            if (!status.isConfirmed()) {
              failed.incrementAndGet();
              all.countDown();
            } else if (confirmed.incrementAndGet() == count) {
              all.countDown();
            }
          };
      for (byte[] body : bodies) {
        producer.send(producer.messageBuilder().addData(body).build(), handler);
      }
      await(all, confirmed, count);
      return confirmed.get();
    }

    @Override
    public void finish() {
      bodies = null;
      if (failed.get() > 0) {
        throw new IllegalStateException(failed.get() + " messages have failed");
      }
    }

    @Override
    public void close() {
      producer.close();
    }
  }

  /** Reads from the first message, with a new consumer in each run. */
  static final class Consume implements Work {
    private Environment environment;
    private String stream;
    private int count;
    private Consumer consumer;
    private volatile byte[] last;

    @Override
    public void open(Environment environment, String stream) {
      if (!environment.streamExists(stream)) {
        throw new StreamDoesNotExistException(stream);
      }
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
      consumer =
          environment.consumerBuilder()
              .stream(stream)
              .offset(OffsetSpecification.first())
              .flow()
              .initialCredits(CREDITS)
              .builder()
              .messageHandler(
                  (context, message) -> {
                    byte[] body = message.getBodyAsBinary();
                    // called by a single thread
                    long number = received.getPlain() + 1;
                    received.lazySet(number);
                    if (number == count) {
                      last = body;
                      ended.countDown();
                    }
                  })
              .build();
      await(ended, received, count);
      return Math.min(received.get(), count);
    }

    @Override
    public void finish() {
      consumer.close();
      if (!Arrays.equals(last, numbered(count - 1))) {
        String found = new String(last, StandardCharsets.ISO_8859_1);
        throw new IllegalStateException("message " + (count - 1) + " has the body " + found);
      }
    }

    @Override
    public void close() {}
  }

  /** User and system time of the process in seconds, which the kernel counts in ticks of 10 ms. */
  static double[] cpu() throws IOException {
    String stat = Files.readString(Path.of("/proc/self/stat"));
    String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
    return new double[] {Long.parseLong(fields[11]) / 100.0, Long.parseLong(fields[12]) / 100.0};
  }

  /** Peak resident memory in bytes. */
  static long peak() throws IOException {
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmHWM:")) {
        return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
      }
    }
    return 0;
  }

  static Map<String, Object> measure(Work work) throws Exception {
    System.gc();
    try {
      Files.writeString(Path.of("/proc/self/clear_refs"), "5");
    } catch (IOException e) {
      // the peak is then that of the whole process
    }
    double[] before = cpu();
    long begun = System.nanoTime(); // CLOCK_MONOTONIC on Linux
    long count = work.run();
    long ended = System.nanoTime();
    double[] after = cpu();
    long peak = peak();
    work.finish();
    return Map.of(
        "count", count,
        "begun", begun / 1e9,
        "ended", ended / 1e9,
        "cpu_user", after[0] - before[0],
        "cpu_sys", after[1] - before[1],
        "max_rss", peak);
  }

  static Environment connect(String address) {
    // this client takes a path of / for a virtual host without a name
    String uri = URI.create(address).getPath().equals("/") ? address.replaceAll("/$", "") : address;
    return Environment.builder().uri(uri).build();
  }

  static void serve(String kind, PrintStream out) throws Exception {
    Gson gson = new Gson();
    Work work =
        switch (kind) {
          case "window" -> new Publish();
          case "consume" -> new Consume();
          case "super-window" -> new SuperPublish();
          case "super-consume" -> new SuperConsume();
          case "group" -> new Group(false);
          case "super-group" -> new Group(true);
          default -> throw new IllegalArgumentException("unknown kind of work " + kind);
        };
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Environment environment = null;
    boolean open = false;
    try {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        JsonObject command = gson.fromJson(line, JsonObject.class);
        String what = command.get("do").getAsString();
        if (!open && !what.equals("open")) {
          throw new IllegalStateException("the first command must be open, not " + what);
        }
        Map<String, Object> answer =
            switch (what) {
              case "open" -> {
                environment = connect(command.get("address").getAsString());
                work.open(environment, command.get("stream").getAsString());
                open = true;
                yield Map.of("loop", "none");
              }
              case "prepare" -> {
                work.prepare(command.get("count").getAsInt());
                yield Map.of();
              }
              case "run" -> measure(work);
              case "join" -> {
                ((Group) work).join(command.get("group").getAsString());
                yield Map.of();
              }
              case "report" -> ((Group) work).report();
              case "leave" -> {
                ((Group) work).leave();
                yield Map.of();
              }
              default -> throw new IllegalArgumentException("unknown command " + what);
            };
        out.println(gson.toJson(answer));
      }
    } finally {
      if (open) {
        work.close();
      }
      if (environment != null) {
        environment.close();
      }
    }
  }

  public static void main(String[] args) {
    PrintStream out = System.out;
    System.setOut(System.err);
    int status = 0;
    try {
      serve(args[0], out);
    } catch (Throwable e) {
      String text = e.getClass().getSimpleName() + ": " + e.getMessage();
      out.println(new Gson().toJson(Map.of("error", text)));
      e.printStackTrace();
      status = 1;
    }
    out.flush();
    System.exit(status);
  }
}
