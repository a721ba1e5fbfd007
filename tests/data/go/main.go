// Publishes to a stream and consumes from it with the Go client, and prints what it received.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

const limit = 30 * time.Second

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// publish sends messages of numbers, and waits until all of them are confirmed.
func publish(env *stream.Environment, name string, first, count int, options *stream.ProducerOptions) {
	producer, err := env.NewProducer(name, options)
	check(err)
	confirmed := make(chan int, count)
	go func(notified stream.ChannelPublishConfirm) {
		for statuses := range notified {
			for _, status := range statuses {
				if status.IsConfirmed() {
					confirmed <- 1
				}
			}
		}
	}(producer.NotifyPublishConfirmation())
	var batch []message.StreamMessage
	for i := first; i < first+count; i++ {
		batch = append(batch, amqp.NewMessage([]byte(strconv.Itoa(i))))
	}
	check(producer.BatchSend(batch))
	for i := 0; i < count; i++ {
		select {
		case <-confirmed:
		case <-time.After(limit):
			check(fmt.Errorf("only %d of %d messages are confirmed", i, count))
		}
	}
	check(producer.Close())
}

// consume reads so many messages, and stores the offset of the last one.
func consume(env *stream.Environment, name string, count int) []string {
	come := make(chan string, count)
	last := make(chan int64, count)
	handle := func(context stream.ConsumerContext, message *amqp.Message) {
		come <- string(message.GetData())
		last <- context.Consumer.GetOffset()
	}
	options := stream.NewConsumerOptions().
		SetConsumerName("go").
		SetOffset(stream.OffsetSpecification{}.First())
	consumer, err := env.NewConsumer(name, handle, options)
	check(err)
	found := []string{}
	for len(found) < count {
		select {
		case body := <-come:
			found = append(found, body)
		case <-time.After(limit):
			check(fmt.Errorf("only %d of %d messages arrived", len(found), count))
		}
	}
	var offset int64
	for range count {
		offset = <-last
	}
	check(consumer.StoreCustomOffset(offset))
	check(consumer.Close())
	return found
}

func main() {
	name := os.Args[2]
	port, err := strconv.Atoi(os.Args[1])
	check(err)
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	if len(os.Args) > 4 && os.Args[4] == "super" {
		superStreams(port, name, count)
		return
	}
	env, err := stream.NewEnvironment(stream.NewEnvironmentOptions().
		SetHost("127.0.0.1").SetPort(port).SetUser("guest").SetPassword("guest"))
	check(err)
	exists, err := env.StreamExists(name)
	check(err)
	if !exists {
		check(env.DeclareStream(name, stream.NewStreamOptions()))
	}
	publish(env, name, 0, count, stream.NewProducerOptions().SetProducerName("go"))
	publish(env, name, count, count, stream.NewProducerOptions().
		SetSubEntrySize(20).SetCompression(stream.Compression{}.Gzip()))
	stats, err := env.StreamStats(name)
	check(err)
	committed, err := stats.CommittedChunkId()
	check(err)
	total := 2 * count
	if len(os.Args) > 4 {
		before, err := strconv.Atoi(os.Args[4])
		check(err)
		total += before
	}
	found := consume(env, name, total)
	stored, err := env.QueryOffset("go", name)
	check(err)
	sequence, err := env.QuerySequence("go", name)
	check(err)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"messages": found, "committed": committed, "offset": stored, "sequence": sequence,
	}))
	check(env.Close())
}
