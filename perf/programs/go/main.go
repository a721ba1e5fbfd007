// A benchmark worker that uses the official Go client; see perf/programs/__init__.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

const (
	window = 10_000
	batch  = 500
	hang   = 60 * time.Second // without any message or confirm, before the worker fails
)

// work is a kind of work; only run is timed.
type work interface {
	open(env *stream.Environment, name string) error
	prepare(count int)
	run() (int, error)
	finish() error
	close() error
}

// publish sends batches with at most `limit` messages in flight.
type publish struct {
	limit     int64
	send      func([]message.StreamMessage) error
	end       func() error
	bodies    [][]byte
	confirmed atomic.Int64  // messages since open
	failed    atomic.Int64  // messages since open
	sent      int64         // messages since open
	news      chan struct{} // signals that a counter has changed
}

func (p *publish) open(env *stream.Environment, name string) error {
	producer, err := env.NewProducer(name, stream.NewProducerOptions())
	if err != nil {
		return err
	}
	p.limit, p.send, p.end = window, producer.BatchSend, producer.Close
	p.news = make(chan struct{}, 1)
	notified := producer.NotifyPublishConfirmation()
	go func() {
		for statuses := range notified {
			p.count(statuses)
		}
	}()
	return nil
}

// count counts confirms.
func (p *publish) count(statuses []*stream.ConfirmationStatus) {
	var confirmed, failed int64
	for _, status := range statuses {
		if status.IsConfirmed() {
			confirmed++
		} else {
			failed++
		}
	}
	p.confirmed.Add(confirmed)
	p.failed.Add(failed)
	select {
	case p.news <- struct{}{}:
	default:
	}
}

func (p *publish) prepare(count int) {
	p.bodies = make([][]byte, count)
	for i := range p.bodies {
		p.bodies[i] = []byte(fmt.Sprintf("%010d", i))
	}
}

// wait returns when at most this many messages are unconfirmed.
func (p *publish) wait(unconfirmed int64) error {
	for p.sent-p.confirmed.Load() > unconfirmed {
		if failed := p.failed.Load(); failed > 0 {
			return fmt.Errorf("%d messages have failed", failed)
		}
		select {
		case <-p.news:
		case <-time.After(hang):
			return fmt.Errorf("%d messages are not confirmed", p.sent-p.confirmed.Load())
		}
	}
	return nil
}

func (p *publish) run() (int, error) {
	before := p.confirmed.Load()
	for rest := p.bodies; len(rest) > 0; {
		size := min(batch, len(rest))
		// one message per body, because the client keeps it until it is confirmed
		messages := make([]message.StreamMessage, size)
		for i, body := range rest[:size] {
			messages[i] = amqp.NewMessage(body)
		}
		rest = rest[size:]
		if err := p.wait(p.limit - int64(size)); err != nil {
			return 0, err
		}
		p.sent += int64(size)
		if err := p.send(messages); err != nil {
			return 0, err
		}
	}
	err := p.wait(0)
	return int(p.confirmed.Load() - before), err
}

func (p *publish) finish() error {
	p.bodies = nil
	if failed := p.failed.Load(); failed > 0 {
		return fmt.Errorf("%d messages have failed", failed)
	}
	return nil
}

func (p *publish) close() error {
	return p.end()
}

// consume reads from the first message, with a new consumer in each run.
type consume struct {
	env      *stream.Environment
	name     string
	count    int
	last     []byte
	consumer *stream.Consumer
}

func (c *consume) open(env *stream.Environment, name string) error {
	c.env, c.name = env, name
	exists, err := env.StreamExists(name)
	if err == nil && !exists {
		err = stream.StreamDoesNotExist
	}
	return err
}

func (c *consume) prepare(count int) {
	c.count = count
}

func (c *consume) run() (int, error) {
	var received atomic.Int64
	var number int // used only by the consumer's goroutine
	ended := make(chan []byte, 1)
	handle := func(_ stream.ConsumerContext, message *amqp.Message) {
		data := message.GetData()
		number++
		if number == c.count {
			received.Store(int64(number))
			ended <- data
		} else if number%100_000 == 0 {
			received.Store(int64(number))
		}
	}
	options := stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.First())
	consumer, err := c.env.NewConsumer(c.name, handle, options)
	if err != nil {
		return 0, err
	}
	c.consumer = consumer
	for before := int64(-1); ; {
		select {
		case c.last = <-ended:
			return int(received.Load()), nil
		case <-time.After(hang):
			if now := received.Load(); now == before {
				return 0, fmt.Errorf("received only about %d of %d messages", now, c.count)
			} else {
				before = now
			}
		}
	}
}

func (c *consume) finish() error {
	if err := c.consumer.Close(); err != nil {
		return err
	}
	if want := fmt.Sprintf("%010d", c.count-1); string(c.last) != want {
		return fmt.Errorf("message %d has the body %q", c.count-1, c.last)
	}
	return nil
}

func (c *consume) close() error {
	return nil
}

// now returns the time of CLOCK_MONOTONIC in seconds.
func now() float64 {
	const clockMonotonic = 1
	var found syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&found)), 0)
	return float64(found.Sec) + float64(found.Nsec)/1e9
}

// cpu returns the user and system time of the process in seconds.
func cpu() (float64, float64) {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime), seconds(usage.Stime)
}

// peak returns the peak resident memory in bytes.
func peak() int {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kilobytes, _ := strconv.Atoi(strings.Fields(rest)[0])
			return kilobytes * 1024
		}
	}
	return 0
}

func measure(work work) (map[string]any, error) {
	runtime.GC()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	user, system := cpu()
	begun := now()
	count, err := work.run()
	ended := now()
	userThen, systemThen := cpu()
	rss := peak()
	if err == nil {
		err = work.finish()
	}
	return map[string]any{
		"count": count, "begun": begun, "ended": ended,
		"cpu_user": userThen - user, "cpu_sys": systemThen - system, "max_rss": rss,
	}, err
}

// connect leaves the sizes of socket buffers to the system, as the client's best practices advise:
// with the client's 8 KiB, connections stall on the loopback interface, whose packets are larger.
func connect(address string) (*stream.Environment, error) {
	return stream.NewEnvironment(stream.NewEnvironmentOptions().
		SetUri(address).SetReadBuffer(-1).SetWriteBuffer(-1))
}

type command struct {
	Do, Address, Stream, Group string
	Count                      int
}

func serve(kind string, reply func(any)) error {
	kinds := map[string]work{
		"window": &publish{}, "super-window": &superPublish{},
		"consume": &consume{}, "super-consume": &superConsume{},
		"group": &group{}, "super-group": &group{super: true},
	}
	work, known := kinds[kind]
	if !known {
		return fmt.Errorf("unknown kind of work %s", kind)
	}
	var env *stream.Environment
	defer func() {
		if env != nil {
			_ = work.close()
			_ = env.Close()
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var order command
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			return err
		}
		if env == nil && order.Do != "open" {
			return fmt.Errorf("the first command must be open, not %s", order.Do)
		}
		switch order.Do {
		case "open":
			made, err := connect(order.Address)
			if err != nil {
				return err
			}
			if err := work.open(made, order.Stream); err != nil {
				_ = made.Close()
				return err
			}
			env = made
			reply(map[string]string{"loop": "none"})
		case "prepare":
			work.prepare(order.Count)
			reply(map[string]string{})
		case "run":
			answer, err := measure(work)
			if err != nil {
				return err
			}
			reply(answer)
		default:
			member, is := work.(member)
			if !is {
				return fmt.Errorf("unknown command %s", order.Do)
			}
			answer, err := serveMember(member, order)
			if err != nil {
				return err
			}
			reply(answer)
		}
	}
	return nil
}

func serveMember(member member, order command) (any, error) {
	switch order.Do {
	case "join":
		return map[string]string{}, member.join(order.Group)
	case "report":
		return member.report()
	case "leave":
		return map[string]string{}, member.leave()
	}
	return nil, fmt.Errorf("unknown command %s", order.Do)
}

func main() {
	out := json.NewEncoder(os.Stdout)
	reply := func(answer any) { _ = out.Encode(answer) }
	if err := serve(os.Args[1], reply); err != nil {
		reply(map[string]string{"error": err.Error()})
		os.Exit(1)
	}
}
