package main

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

const windowOfPartition = 5_000

// superPublish sends to a super stream, each message being its own key.
type superPublish struct {
	publish
}

func (p *superPublish) open(env *stream.Environment, name string) error {
	key := func(message message.StreamMessage) string { return string(message.GetData()[0]) }
	options := stream.NewSuperStreamProducerOptions(stream.NewHashRoutingStrategy(key))
	producer, err := env.NewSuperStreamProducer(name, options)
	if err != nil {
		return err
	}
	p.limit = int64(windowOfPartition * len(producer.GetPartitions()))
	p.end = producer.Close
	p.send = func(messages []message.StreamMessage) error {
		for _, message := range messages {
			if err := producer.Send(message); err != nil {
				return err
			}
		}
		return nil
	}
	p.news = make(chan struct{}, 1)
	notified := producer.NotifyPublishConfirmation(1)
	go func() {
		for confirms := range notified {
			p.count(confirms.ConfirmationStatus)
		}
	}()
	return nil
}

// partition is what was read from one; only the goroutine of its consumer uses it.
type partition struct {
	last  []byte
	wrong atomic.Int64 // messages that are not above the last one
	_     [64]byte     // another goroutine uses the next one
}

// superConsume reads all partitions from the first message, with new consumers in each run.
type superConsume struct {
	env        *stream.Environment
	name       string
	count      int64
	partitions map[string]*partition
	consumer   *stream.SuperStreamConsumer
}

func (c *superConsume) open(env *stream.Environment, name string) error {
	c.env, c.name = env, name
	_, err := env.QueryPartitions(name)
	return err
}

func (c *superConsume) prepare(count int) {
	c.count = int64(count)
}

func (c *superConsume) run() (int, error) {
	names, err := c.env.QueryPartitions(c.name)
	if err != nil {
		return 0, err
	}
	c.partitions = map[string]*partition{}
	for _, name := range names {
		c.partitions[name] = &partition{}
	}
	var received atomic.Int64
	ended := make(chan struct{})
	handle := func(context stream.ConsumerContext, message *amqp.Message) {
		data := message.GetData()
		from := c.partitions[context.Consumer.GetStreamName()]
		if bytes.Compare(data, from.last) <= 0 {
			from.wrong.Add(1)
		}
		from.last = data
		if received.Add(1) == c.count {
			close(ended)
		}
	}
	options := stream.NewSuperStreamConsumerOptions().
		SetOffset(stream.OffsetSpecification{}.First())
	c.consumer, err = c.env.NewSuperStreamConsumer(c.name, handle, options)
	if err != nil {
		return 0, err
	}
	for before := int64(-1); ; {
		select {
		case <-ended:
			return int(c.count), nil
		case <-time.After(hang):
			if now := received.Load(); now == before {
				return 0, fmt.Errorf("received only %d of %d messages", now, c.count)
			} else {
				before = now
			}
		}
	}
}

func (c *superConsume) finish() error {
	if err := c.consumer.Close(); err != nil {
		return err
	}
	for name, from := range c.partitions {
		if wrong := from.wrong.Load(); wrong > 0 {
			return fmt.Errorf("%d messages of %s are out of order", wrong, name)
		}
	}
	return nil
}

func (c *superConsume) close() error {
	return nil
}
