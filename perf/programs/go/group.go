package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

// member is a work that reads as a member of a group.
type member interface {
	join(group string) error
	report() (any, error)
	leave() error
}

// group reads a stream or a super stream as a member; the program stores its offsets.
//
// With the client's automatic commits, a member that is no longer active stores the offsets of
// messages that it has skipped.
type group struct {
	super    bool
	env      *stream.Environment
	name     string // of the stream
	group    string
	mutex    sync.Mutex
	active   map[string]bool
	next     map[string]int64 // offset after the last message, by partition
	messages [][]any          // since the last report
	failure  error
	stop     func() error
}

func (g *group) open(env *stream.Environment, name string) error {
	g.env, g.name = env, name
	return nil
}

func (g *group) join(name string) error {
	g.group, g.active, g.next = name, map[string]bool{}, map[string]int64{}
	first := stream.OffsetSpecification{}.First()
	single := stream.NewSingleActiveConsumer(g.update)
	if g.super {
		options := stream.NewSuperStreamConsumerOptions().SetConsumerName(name).
			SetSingleActiveConsumer(single).SetOffset(first)
		consumer, err := g.env.NewSuperStreamConsumer(g.name, g.handle, options)
		if err == nil {
			g.stop = consumer.Close
		}
		return err
	}
	options := stream.NewConsumerOptions().SetConsumerName(name).
		SetSingleActiveConsumer(single).SetOffset(first)
	consumer, err := g.env.NewConsumer(g.name, g.handle, options)
	if err == nil {
		g.stop = consumer.Close
	}
	return err
}

func (g *group) handle(context stream.ConsumerContext, message *amqp.Message) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	from, offset := context.Consumer.GetStreamName(), context.Consumer.GetOffset()
	// the client may still have messages from the last time that it was active
	if !g.active[from] || offset < g.next[from] {
		return
	}
	g.next[from] = offset + 1
	g.messages = append(g.messages, []any{now(), from, offset, string(message.GetData())})
}

// update answers the broker: the offset at which this member starts, or that it has stored its own.
func (g *group) update(from string, active bool) stream.OffsetSpecification {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	var err error
	if active {
		err = g.start(from)
	} else {
		err = g.store(from)
	}
	if err != nil {
		g.failure = fmt.Errorf("%s: %w", from, err)
	}
	if active {
		return stream.OffsetSpecification{}.Offset(g.next[from])
	}
	return stream.OffsetSpecification{}.Next()
}

func (g *group) start(from string) error {
	stored, err := g.env.QueryOffset(g.group, from)
	if errors.Is(err, stream.OffsetNotFoundError) {
		stored, err = -1, nil
	}
	g.active[from], g.next[from] = true, stored+1
	return err
}

// store stores the offset of the last message, and waits until the broker has it.
func (g *group) store(from string) error {
	if !g.active[from] {
		return nil
	}
	g.active[from] = false
	last := g.next[from] - 1
	if last < 0 {
		return nil
	}
	if err := g.env.StoreOffset(g.group, from, last); err != nil {
		return err
	}
	for end := time.Now().Add(hang); ; time.Sleep(10 * time.Millisecond) {
		stored, err := g.env.QueryOffset(g.group, from)
		if err == nil && stored == last {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("offset %d is not stored: %d, %w", last, stored, err)
		}
	}
}

func (g *group) report() (any, error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	messages := g.messages
	g.messages = nil
	return map[string]any{"messages": append([][]any{}, messages...)}, g.failure
}

func (g *group) leave() error {
	g.mutex.Lock()
	for from := range g.active {
		if err := g.store(from); err != nil && g.failure == nil {
			g.failure = err
		}
	}
	g.mutex.Unlock()
	return errors.Join(g.stop(), g.failure)
}

func (g *group) prepare(int) {}

func (g *group) run() (int, error) {
	return 0, errors.New("a member of a group is not measured: use join, report and leave")
}

func (g *group) finish() error {
	return nil
}

func (g *group) close() error {
	return nil
}
